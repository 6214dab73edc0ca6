//! Videos as frames, by the programs ffmpeg and ffprobe where the machine has them.

use anyhow::Context;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Endings of files that are taken for videos.
pub(crate) const ENDINGS: [&str; 6] = ["mp4", "m4v", "mov", "mkv", "webm", "avi"];

/// Frames of a video, evenly spread.
const FRAMES: u32 = 8;
/// The widest frame, in pixels.
const WIDEST: u32 = 1280;
/// A PNG ends so.
const END: &[u8] = b"IEND\xaeB`\x82";

/// The programs.
pub(crate) struct Tools {
    ffmpeg: PathBuf,
    ffprobe: PathBuf,
}

impl Tools {
    /// Those of this machine, or what is missing.
    pub(crate) fn find() -> Result<Tools, &'static str> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let find = |name: &'static str| {
            let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
            let mut all = std::env::split_paths(&path).map(|folder| folder.join(&file));
            all.find(|path| path.is_file()).ok_or(name)
        };
        Ok(Tools {
            ffmpeg: find("ffmpeg")?,
            ffprobe: find("ffprobe")?,
        })
    }

    /// Frames of a video, as PNG files.
    pub(crate) fn frames(&self, video: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
        let name = video.display();
        anyhow::ensure!(video.is_file(), "{name}: is not a file");
        // Never an address.
        let mut input = OsString::from("file:");
        input.push(video);
        let asked = "-v error -show_entries format=duration -of csv=p=0 -i";
        let seconds = output(&self.ffprobe, asked, &input, "").context(name.to_string())?;
        let seconds: Option<f64> = std::str::from_utf8(&seconds)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        let seconds = seconds.filter(|seconds| seconds.is_finite() && *seconds > 0.0);
        let seconds = seconds.with_context(|| format!("{name}: ffprobe tells no duration"))?;
        let rate = f64::from(FRAMES) / seconds;
        let how = format!(
            "-vf fps={rate:.6},scale='min({WIDEST},iw)':-2 -frames:v {FRAMES} -f image2pipe -c:v png -"
        );
        let bytes = output(&self.ffmpeg, "-v error -nostdin -i", &input, &how);
        let frames = pictures(&bytes.context(name.to_string())?);
        anyhow::ensure!(!frames.is_empty(), "{name}: ffmpeg finds no frame in it");
        Ok(frames)
    }
}

/// What a program writes for these words around a file.
fn output(program: &Path, before: &str, input: &OsStr, after: &str) -> anyhow::Result<Vec<u8>> {
    let name = program.file_name().unwrap_or_default().display();
    let done = Command::new(program)
        .args(before.split(' '))
        .arg(input)
        .args(after.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{name} cannot be run"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    anyhow::ensure!(done.status.success(), "{name} failed: {}", said.trim());
    Ok(done.stdout)
}

/// Pictures that follow each other.
fn pictures(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(at) = bytes.windows(END.len()).position(|part| part == END) {
        let (own, rest) = bytes.split_at(at + END.len());
        all.push(own.to_vec());
        bytes = rest;
    }
    all
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn program(path: &Path, text: &str) {
        std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_video_becomes_frames_spread_over_its_length() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let tools = Tools {
            ffmpeg: at("ffmpeg"),
            ffprobe: at("ffprobe"),
        };
        let video = at("a video.mp4");
        assert!(tools.frames(&video).is_err());
        std::fs::write(&video, "").unwrap();
        std::fs::write(at("frames"), [b"one", END, b"two", END].concat()).unwrap();
        let said = at("said").display().to_string();
        program(&tools.ffprobe, "echo 16.0");
        let frames = at("frames").display().to_string();
        program(
            &tools.ffmpeg,
            &format!("echo \"$@\" > '{said}'; cat '{frames}'"),
        );
        let found = tools.frames(&video).unwrap();
        assert_eq!(found, [[b"one", END].concat(), [b"two", END].concat()]);
        let said = std::fs::read_to_string(said).unwrap();
        let input = format!("-i file:{}", video.display());
        assert!(
            said.contains(&input) && said.contains("fps=0.500000,"),
            "{said}"
        );
        program(&tools.ffmpeg, "echo no such codec >&2; exit 1");
        let error = format!("{:#}", tools.frames(&video).unwrap_err());
        assert!(
            error.contains("a video.mp4") && error.contains("no such codec"),
            "{error}"
        );
        program(&tools.ffprobe, "echo N/A");
        let error = tools.frames(&video).unwrap_err().to_string();
        assert!(error.contains("no duration"), "{error}");
    }
}
