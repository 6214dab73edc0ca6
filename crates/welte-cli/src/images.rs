//! Images and sounds on the command line: where the model's eyes are, and which files a question is about.

use anyhow::Context;
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use welte::{Image, ImageSource, Images, LoadOptions, VideoTools};

/// The largest file of an image or a sound, in bytes.
const LARGEST: u64 = 100 << 20;

/// Endings of files that are taken for images where a line names them.
const ENDINGS: [&str; 9] = [
    "png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff", "jfif",
];
/// Endings of files that are taken for videos.
const VIDEOS: [&str; 6] = ["mp4", "m4v", "mov", "mkv", "webm", "avi"];
/// Endings of files that are taken for sounds.
const SOUNDS: [&str; 10] = [
    "wav", "mp3", "flac", "ogg", "oga", "m4a", "aac", "aiff", "aif", "mka",
];
/// Frames of a video.
const FRAMES: u32 = 8;

/// Where the model's eyes are.
#[derive(Args)]
pub(crate) struct EyeArgs {
    /// File with the model's encoder of images or sounds (also -mm) [default: mmproj*.gguf beside the model]
    #[arg(long, value_name = "FILE", conflicts_with = "no_mmproj")]
    pub(crate) mmproj: Option<PathBuf>,
    /// Take no images, even if there is an encoder beside the model
    #[arg(long)]
    pub(crate) no_mmproj: bool,
}

impl EyeArgs {
    pub(crate) fn set(&self, options: &mut LoadOptions) {
        options.images = match &self.mmproj {
            Some(path) => Images::File(path.clone()),
            None if self.no_mmproj => Images::Off,
            None => Images::Beside,
        };
    }

    /// An encoder in the model's repository is of use.
    pub(crate) fn wants_encoder(&self) -> bool {
        self.mmproj.is_none() && !self.no_mmproj
    }
}

/// Reads all of these files.
pub(crate) fn read_all(paths: &[PathBuf]) -> anyhow::Result<Vec<Image>> {
    paths.iter().map(|path| read(path)).collect()
}

/// Reads the file of an image, a sound or a video, to stand at the beginning of a text.
pub(crate) fn read(path: &Path) -> anyhow::Result<Image> {
    if has_ending(path, &SOUNDS) {
        return read_sound(path);
    }
    if !is_video(path) {
        return file(path, ImageSource::Bytes);
    }
    let name = path.display().to_string();
    let tools = VideoTools::find().map_err(|missing| {
        anyhow::anyhow!("{name}: videos need {missing}, which was not found; pass frames as images")
    })?;
    let video = tools.frames(path, 1 << 30, |_| FRAMES);
    let video = video.map_err(|problem| anyhow::anyhow!("{name}: {problem}"))?;
    Ok(Image {
        at: 0,
        source: ImageSource::Video(Arc::new(video)),
        name,
    })
}

/// Reads a file of sound.
pub(crate) fn read_sound(path: &Path) -> anyhow::Result<Image> {
    file(path, ImageSource::Sound)
}

fn file(path: &Path, source: fn(Arc<[u8]>) -> ImageSource) -> anyhow::Result<Image> {
    let name = path.display().to_string();
    let meta = std::fs::metadata(path).with_context(|| format!("{name}: cannot be read"))?;
    anyhow::ensure!(meta.is_file(), "{name}: is not a file");
    let bytes = meta.len();
    anyhow::ensure!(
        bytes <= LARGEST,
        "{name}: {bytes} bytes is too large; at most {LARGEST} are read"
    );
    let bytes = std::fs::read(path).with_context(|| format!("{name}: cannot be read"))?;
    Ok(Image {
        at: 0,
        source: source(bytes.into()),
        name,
    })
}

/// Takes the paths of images and sounds that a model takes out of a line, as terminals write them when files are dropped there: in
/// quotes, or with backslashes before blanks. Other words stay as they are.
pub(crate) fn dropped(line: &str, sees: bool, hears: bool) -> (String, Vec<PathBuf>) {
    let is_medium = |path: &Path| {
        let seen = sees && (has_ending(path, &ENDINGS) || is_video(path));
        (seen || hears && has_ending(path, &SOUNDS)) && path.is_file()
    };
    let (mut rest, mut paths) = (String::new(), Vec::new());
    let mut left = line;
    while !left.is_empty() {
        let blank = left.len() - left.trim_start().len();
        rest.push_str(&left[..blank]);
        left = &left[blank..];
        let (word, end) = word(left);
        if is_medium(Path::new(&word)) {
            paths.push(word.into());
        } else {
            rest.push_str(&left[..end]);
        }
        left = &left[end..];
    }
    if paths.is_empty() {
        (line.to_string(), paths)
    } else {
        (rest.trim().to_string(), paths)
    }
}

/// A file that is taken for a video.
fn is_video(path: &Path) -> bool {
    has_ending(path, &VIDEOS)
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|own| endings.iter().any(|e| e.eq_ignore_ascii_case(own)))
}

/// The first word as a shell reads it, and where it ends.
fn word(text: &str) -> (String, usize) {
    let (mut word, mut quote, mut escaped) = (String::new(), None, false);
    for (at, c) in text.char_indices() {
        match (c, quote) {
            (c, _) if escaped => {
                word.push(c);
                escaped = false;
            }
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.push(c),
            ('\'' | '"', None) if at == 0 => quote = Some(c),
            ('\\', None) if cfg!(unix) => escaped = true,
            (c, None) if c.is_whitespace() => return (word, at),
            (c, None) => word.push(c),
        }
    }
    (word, text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_files_leave_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let names = ["a.PNG", "two words.jpg", "notes.txt", "said.Mp3"];
        for name in names {
            std::fs::write(at(name), "").unwrap();
        }
        let [a, two, notes, said] = names.map(at);
        let quoted = format!("what is '{}'  this?", two.display());
        let all = [
            (format!("{} what?", a.display()), "what?", vec![a.clone()]),
            (quoted, "what is   this?", vec![two.clone()]),
            (said.display().to_string(), "", vec![said.clone()]),
            (
                format!("{} {}", a.display(), a.display()),
                "",
                vec![a.clone(), a.clone()],
            ),
        ];
        for (line, text, paths) in all {
            assert_eq!(
                dropped(&line, true, true),
                (text.to_string(), paths),
                "{line}"
            );
        }
        if cfg!(unix) {
            let escaped = two.display().to_string().replace(' ', "\\ ");
            assert_eq!(dropped(&escaped, true, true), (String::new(), vec![two]));
        }
        for line in [
            "plain 'words' \\ here ",
            &format!("see {}", notes.display()),
            "no.png",
            "'",
        ] {
            assert_eq!(dropped(line, true, true), (line.to_string(), Vec::new()));
        }
        // Only what the model takes.
        let both = format!("{} {}", a.display(), said.display());
        let (picture, sound) = (vec![a.clone()], vec![said.clone()]);
        for (sees, hears, paths) in [
            (true, false, picture),
            (false, true, sound),
            (false, false, Vec::new()),
        ] {
            assert_eq!(dropped(&both, sees, hears).1, paths);
        }
        assert!(read(folder.path()).is_err());
        let is_sound = |image: anyhow::Result<Image>| image.unwrap().source.is_sound();
        assert!(is_sound(read(&said)) && is_sound(read_sound(&notes)));
        assert!(!is_sound(read(&a)));
    }
}
