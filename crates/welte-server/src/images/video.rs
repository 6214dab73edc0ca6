//! Videos in requests: a file, whose frames ffmpeg finds, or a list of frames.

use super::source::{ImageRules, bytes_at};
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use welte::{Film, Frame, Video, VideoTools};
use welte_text::from_base64;

/// How long a frame of a list is shown, unless the request says otherwise.
const STEP: Duration = Duration::from_millis(500);
/// The most frames that are taken of a list.
const LISTED: u32 = 64;
/// The most frames that the videos of a request may list.
pub(super) const MOST_LISTED: usize = 4096;
/// Bytes of the frames that are taken of a request's videos.
const MOST_BYTES: usize = 256 << 20;
/// The media type of a list of frames in one data address, as vLLM takes it.
const FRAMES: &str = "data:video/jpeg;base64,";

/// Fetches the videos of a request.
pub(super) struct Reader<'a> {
    rules: &'a ImageRules,
    film: Film,
    /// The most pictures that a video may become.
    pictures: u32,
    /// Bytes that frames may still have.
    left: usize,
    /// Whether somebody waits for the answer.
    wanted: &'a dyn Fn() -> bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        rules: &'a ImageRules,
        film: Film,
        pictures: u32,
        wanted: &'a dyn Fn() -> bool,
    ) -> Reader<'a> {
        Reader {
            rules,
            film,
            pictures,
            left: MOST_BYTES,
            wanted,
        }
    }

    /// The frames of a video at these addresses: one of a file, or several of frames.
    pub(super) fn frames(
        &mut self,
        urls: &[String],
        step: Option<Duration>,
    ) -> Result<Video, String> {
        let rules = self.rules;
        if let Some(list) = in_one(urls) {
            let frame = |text: &str| {
                let bytes = from_base64(text).filter(|bytes| !bytes.is_empty());
                let bytes = bytes.ok_or("is not frames as base64, with commas between them")?;
                checked(rules, bytes.into())
            };
            return self.of_list(&list.split(',').collect::<Vec<_>>(), step, frame);
        }
        match urls {
            [url] if !url.starts_with("data:image/") => self.of_file(url, step),
            urls => self.of_list(urls, step, |url| sized(rules, url)),
        }
    }

    /// Reads as many frames of a list as fit, evenly spread.
    fn of_list(
        &mut self,
        all: &[impl AsRef<str>],
        step: Option<Duration>,
        read: impl Fn(&str) -> Result<Arc<[u8]>, String>,
    ) -> Result<Video, String> {
        // The client has chosen them.
        let film = Film {
            most: self.film.most.max(LISTED),
            ..self.film
        };
        let (step, most) = (step.unwrap_or(STEP), film.frames(f64::MAX, self.pictures));
        let mut frames = Vec::new();
        for number in spread(all.len(), most as usize) {
            if !(self.wanted)() {
                return Err("nobody waits for it".into());
            }
            let bytes = read(all[number].as_ref())?;
            self.weigh(bytes.len())?;
            frames.push(Frame {
                bytes,
                at: step * number as u32,
            });
        }
        Ok(Video {
            frames,
            length: step * all.len() as u32,
        })
    }

    fn of_file(&mut self, url: &str, step: Option<Duration>) -> Result<Video, String> {
        if !self.rules.videos {
            let problem =
                "files of videos are not read; send frames as images, or see --allow-videos";
            return Err(problem.into());
        }
        let tools = VideoTools::find().map_err(|missing| {
            format!("videos need {missing}, which the server does not find; send frames as images")
        })?;
        let bytes = sized(self.rules, url)?;
        let file = Temporary::new(&bytes).map_err(|error| format!("cannot be stored: {error}"))?;
        drop(bytes);
        let film = Film {
            rate: step.map(|step| 1.0 / step.as_secs_f64()).or(self.film.rate),
            ..self.film
        };
        let count = |seconds| film.frames(seconds, self.pictures);
        let video = tools.frames(&file.0, self.left as u64, count)?;
        let bytes = video.frames.iter().map(|frame| frame.bytes.len());
        self.weigh(bytes.sum())?;
        Ok(video)
    }

    /// Counts bytes of frames.
    fn weigh(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.left.checked_sub(bytes).ok_or_else(|| {
            let most = MOST_BYTES >> 20;
            format!("the frames of a request's videos may have {most} MiB together")
        });
        self.left = left?;
        Ok(())
    }
}

/// How many frames a video lists; 1 if it is a file.
pub(super) fn listed(urls: &[String]) -> usize {
    in_one(urls).map_or(urls.len(), |list| list.split(',').count())
}

/// The frames of a list in one address.
fn in_one(urls: &[String]) -> Option<&str> {
    match urls {
        [url] => url.strip_prefix(FRAMES),
        _ => None,
    }
}

fn sized(rules: &ImageRules, url: &str) -> Result<Arc<[u8]>, String> {
    checked(rules, bytes_at(rules, url)?)
}

fn checked(rules: &ImageRules, bytes: Arc<[u8]>) -> Result<Arc<[u8]>, String> {
    if bytes.len() > rules.largest {
        let (own, most) = (bytes.len() >> 10, rules.largest >> 10);
        return Err(format!("has {own} KiB; it may have {most}"));
    }
    Ok(bytes)
}

/// The numbers of the frames that are kept of so many, evenly spread.
fn spread(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let own = count.min(most.max(1));
    (0..own).map(move |number| number * count / own)
}

/// A file that only this user can read, until it is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(bytes: &[u8]) -> std::io::Result<Temporary> {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        // Others cannot guess the name, and an earlier process with this one's id has not left a file of it.
        let number = RandomState::new().hash_one(std::process::id());
        let path = std::env::temp_dir().join(format!("welte-video-{number:016x}"));
        let mut file = options.open(&path)?;
        let own = Temporary(path);
        file.write_all(bytes)?;
        Ok(own)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader<'a>(rules: &'a ImageRules, wanted: &'a dyn Fn() -> bool) -> Reader<'a> {
        Reader::new(rules, Film::PLAIN, 4, wanted)
    }

    /// Only frames that are kept are read.
    #[test]
    fn a_list_of_frames_is_thinned_out_evenly() {
        let rules = ImageRules::default();
        let all: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        let read = |text: &str| match text {
            "0" | "2" | "5" | "7" => Ok(text.as_bytes().into()),
            other => Err(format!("{other} is not kept")),
        };
        let video = reader(&rules, &|| true).of_list(&all, None, read).unwrap();
        let kept: Vec<(u8, u128)> = video
            .frames
            .iter()
            .map(|frame| (frame.bytes[0] - b'0', frame.at.as_millis()))
            .collect();
        assert_eq!(kept, [(0, 0), (2, 1000), (5, 2500), (7, 3500)]);
        assert_eq!(video.length, Duration::from_secs(5));
        assert_eq!(spread(10, 64).count(), 10);
    }

    #[test]
    fn frames_are_bounded_and_read_while_they_are_wanted() {
        let rules = ImageRules {
            largest: 3,
            ..ImageRules::default()
        };
        let list = |text: &str| [format!("{FRAMES}{text}")];
        assert_eq!(listed(&list("Zm9v,Zm9v")), 2);
        let found = reader(&rules, &|| true).frames(&list("Zm9v,Zm9v"), None);
        assert_eq!(found.unwrap().frames.len(), 2);
        let error = reader(&rules, &|| true).frames(&list("Zm9v,Zm9vYg=="), None);
        assert!(error.unwrap_err().contains("it may have"));
        let error = reader(&rules, &|| false).frames(&list("Zm9v"), None);
        assert!(error.unwrap_err().contains("nobody"));
        let mut reader = reader(&rules, &|| true);
        reader.left = 5;
        let error = reader.frames(&list("Zm9v,Zm9v"), None).unwrap_err();
        assert!(error.contains("together"), "{error}");
    }

    #[test]
    fn a_temporary_file_goes_when_it_is_dropped() {
        let file = Temporary::new(b"bytes").unwrap();
        let path = file.0.clone();
        assert_eq!(std::fs::read(&path).unwrap(), b"bytes");
        drop(file);
        assert!(!path.exists());
    }
}
