//! Videos as frames, by the programs ffmpeg and ffprobe where the machine has them.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use welte_text::{Frame, Video};

/// The longest side of a frame, in pixels.
const LONGEST: u32 = 1280;
/// A PNG ends so.
const END: &[u8] = b"IEND\xaeB`\x82";
/// What a program may take, and write.
const PATIENCE: Duration = Duration::from_secs(60);
const MOST_BYTES: u64 = 1 << 30;
/// Only files of these kinds, which name no other files, are read.
const SAFE: &str =
    "-protocol_whitelist file -format_whitelist mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif";

/// The programs.
#[derive(Clone, Debug)]
pub struct VideoTools {
    ffmpeg: PathBuf,
    ffprobe: PathBuf,
}

impl VideoTools {
    /// Those of this machine, or what is missing.
    pub fn find() -> Result<VideoTools, &'static str> {
        VideoTools::among(&std::env::var_os("PATH").unwrap_or_default())
    }

    /// Those in a list of folders.
    fn among(folders: &OsStr) -> Result<VideoTools, &'static str> {
        let find = |name: &'static str| {
            let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
            let mut all = std::env::split_paths(folders).map(|folder| folder.join(&file));
            all.find(|path| path.is_file()).ok_or(name)
        };
        Ok(VideoTools {
            ffmpeg: find("ffmpeg")?,
            ffprobe: find("ffprobe")?,
        })
    }

    /// Frames of a video as PNG files, evenly spread: as many as `count` says for its length in seconds.
    pub fn frames(&self, video: &Path, count: impl Fn(f64) -> u32) -> Result<Video, String> {
        if !video.is_file() {
            return Err("is not a file".into());
        }
        // Never an address.
        let mut input = OsString::from("file:");
        input.push(video);
        let asked = format!("-v error {SAFE} -show_entries format=duration -of csv=p=0 -i");
        let seconds = output(&self.ffprobe, &asked, &input, "")?;
        let seconds: Option<f64> = std::str::from_utf8(&seconds)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        let seconds =
            seconds.filter(|seconds| seconds.is_finite() && *seconds > 0.0 && *seconds < 1e6);
        let seconds = seconds.ok_or("ffprobe tells no duration")?;
        let count = count(seconds).max(1);
        let rate = f64::from(count) / seconds;
        let how = format!(
            "-vf fps={rate:.6},scale='min({LONGEST},iw)':'min({LONGEST},ih)':force_original_aspect_ratio=decrease \
             -frames:v {count} -f image2pipe -c:v png -"
        );
        let bytes = output(
            &self.ffmpeg,
            &format!("-v error -nostdin {SAFE} -i"),
            &input,
            &how,
        )?;
        let at = |number: usize| Duration::from_secs_f64(number as f64 / rate);
        let frames = pictures(&bytes).into_iter().enumerate();
        let frames = frames.map(|(number, bytes)| Frame {
            bytes: bytes.into(),
            at: at(number),
        });
        let frames: Vec<Frame> = frames.collect();
        if frames.is_empty() {
            return Err("ffmpeg finds no frame in it".into());
        }
        Ok(Video {
            frames,
            length: Duration::from_secs_f64(seconds),
        })
    }
}

/// What a program writes for these words around a file.
fn output(program: &Path, before: &str, input: &OsStr, after: &str) -> Result<Vec<u8>, String> {
    let name = program.file_name().unwrap_or_default().display();
    let child = Command::new(program)
        .args(before.split(' '))
        .arg(input)
        .args(after.split_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| format!("{name} cannot be run: {error}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (done, wait) = channel();
    let read = |pipe: &mut dyn Read, most: u64| {
        let mut bytes = Vec::new();
        let read = pipe.take(most).read_to_end(&mut bytes);
        read.map(|_| bytes).unwrap_or_default()
    };
    let told =
        std::thread::spawn(move || read(&mut err.into_iter().next().expect("a pipe"), 1 << 16));
    std::thread::spawn(move || {
        let mut out = out.into_iter().next().expect("a pipe");
        let _ = done.send(read(&mut out, MOST_BYTES));
    });
    let bytes = wait.recv_timeout(PATIENCE);
    if matches!(bytes, Err(RecvTimeoutError::Timeout)) {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| format!("{name}: {error}"))?;
    let bytes = bytes.map_err(|_| format!("{name} took more than {} s", PATIENCE.as_secs()))?;
    if bytes.len() as u64 == MOST_BYTES {
        return Err(format!("{name} writes more than {MOST_BYTES} bytes"));
    }
    let told = told.join().unwrap_or_default();
    if !status.success() {
        let told: String = String::from_utf8_lossy(&told)
            .trim()
            .chars()
            .take(300)
            .collect();
        return Err(format!("{name} failed: {told}"));
    }
    Ok(bytes)
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
        assert_eq!(
            VideoTools::among(folder.path().as_os_str()).err(),
            Some("ffmpeg")
        );
        program(&at("ffmpeg"), "");
        assert_eq!(
            VideoTools::among(folder.path().as_os_str()).err(),
            Some("ffprobe")
        );
        program(&at("ffprobe"), "echo 16.0");
        let tools = VideoTools::among(folder.path().as_os_str()).unwrap();
        let frames = |video: &Path| tools.frames(video, |seconds| seconds as u32 / 2);
        let video = at("a video.mp4");
        assert!(frames(&video).is_err());
        std::fs::write(&video, "").unwrap();
        std::fs::write(at("frames"), [b"one", END, b"two", END].concat()).unwrap();
        let said = at("said").display().to_string();
        let pictures = at("frames").display().to_string();
        program(
            &tools.ffmpeg,
            &format!("echo \"$@\" > '{said}'; cat '{pictures}'"),
        );
        let found = frames(&video).unwrap();
        assert_eq!(found.length, Duration::from_secs(16));
        let times = found.frames.iter().map(|frame| frame.at.as_secs());
        assert_eq!(times.collect::<Vec<_>>(), [0, 2]);
        let bytes: Vec<&[u8]> = found.frames.iter().map(|frame| &*frame.bytes).collect();
        assert_eq!(bytes, [[b"one", END].concat(), [b"two", END].concat()]);
        let said = std::fs::read_to_string(said).unwrap();
        let input = format!("-i file:{}", video.display());
        assert!(
            said.contains(&input)
                && said.contains("fps=0.500000,")
                && said.contains("-protocol_whitelist file"),
            "{said}"
        );
        program(&tools.ffmpeg, "echo no such codec >&2; exit 1");
        let error = frames(&video).unwrap_err();
        assert!(error.contains("no such codec"), "{error}");
        program(&tools.ffprobe, "echo N/A");
        let error = frames(&video).unwrap_err();
        assert!(error.contains("no duration"), "{error}");
    }
}
