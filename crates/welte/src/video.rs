//! Videos as frames, by the programs ffmpeg and ffprobe where the machine has them.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use welte_text::{Frame, Video};

/// The longest side of a frame, in pixels.
const LONGEST: u32 = 1280;
/// A PNG ends so.
const END: &[u8] = b"IEND\xaeB`\x82";
/// What a program may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most bytes of a program's complaints.
const TOLD: u64 = 1 << 16;
/// Only files of these kinds are read. Those of MOV can name other files: ffmpeg leaves them alone without `enable_drefs`.
const SAFE: &str =
    "-protocol_whitelist file -format_whitelist mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif";
/// Pictures are at most a bit larger than those of 8K, which bounds memory together with the number of threads.
const BOUNDED: &str = "-threads 2 -max_pixels 37748736";

/// The programs.
#[derive(Clone, Debug)]
pub struct VideoTools {
    ffmpeg: PathBuf,
    ffprobe: PathBuf,
    patience: Duration,
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
            patience: PATIENCE,
        })
    }

    /// Frames of a video as PNG files of at most `most_bytes` together, evenly spread: as many as `count` says for its length in
    /// seconds. Each of the two programs has a minute.
    pub fn frames(
        &self,
        video: &Path,
        most_bytes: u64,
        count: impl Fn(f64) -> u32,
    ) -> Result<Video, String> {
        if !video.is_file() {
            return Err("is not a file".into());
        }
        // Never an address.
        let mut input = OsString::from("file:");
        input.push(video);
        let asked =
            format!("-v error {SAFE} {BOUNDED} -show_entries format=duration -of csv=p=0 -i");
        let seconds = self.output(&self.ffprobe, [&asked, ""], &input, TOLD)?;
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
             -frames:v {count} -pix_fmt rgb24 -threads 2 -f image2pipe -c:v png -"
        );
        let before = format!("-v error -nostdin -filter_threads 2 {SAFE} {BOUNDED} -i");
        let bytes = self.output(&self.ffmpeg, [&before, &how], &input, most_bytes)?;
        let at = |number: usize| Duration::from_secs_f64(number as f64 / rate);
        let frames = pictures(&bytes).into_iter().enumerate();
        let frames = frames.map(|(number, bytes)| Frame {
            bytes: Arc::from(bytes),
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

    /// What a program writes for these words around a file.
    fn output(
        &self,
        program: &Path,
        [before, after]: [&str; 2],
        input: &OsStr,
        most_bytes: u64,
    ) -> Result<Vec<u8>, String> {
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
        let end = Instant::now() + self.patience;
        let written = read(child.stdout.take(), most_bytes.saturating_add(1));
        let told = read(child.stderr.take(), TOLD);
        let bytes = written.recv_timeout(self.patience);
        let too_many = bytes.as_ref().map_or(0, Vec::len) as u64 > most_bytes;
        // What writes on need not be waited for.
        let status = ended(&mut child, if too_many { Instant::now() } else { end });
        if too_many {
            return Err(format!("{name} writes more than {most_bytes} bytes"));
        }
        let status = status.map_err(|error| format!("{name}: {error}"))?;
        let (Ok(bytes), Some(status)) = (bytes, status) else {
            let most = self.patience.as_secs();
            return Err(format!("{name} took more than {most} s"));
        };
        if !status.success() {
            let left = end.saturating_duration_since(Instant::now());
            let told = told.recv_timeout(left).unwrap_or_default();
            let told = String::from_utf8_lossy(&told);
            let told: String = told.trim().chars().take(300).collect();
            return Err(format!("{name} failed: {told}"));
        }
        Ok(bytes)
    }
}

/// Reads what a program writes, up to a bound, beside the caller.
fn read(pipe: Option<impl Read + Send + 'static>, most: u64) -> Receiver<Vec<u8>> {
    let (done, wait) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.map(|pipe| pipe.take(most).read_to_end(&mut bytes));
        let read = read.is_some_and(|read| read.is_ok());
        // Nobody may wait any longer.
        let _ = done.send(if read { bytes } else { Vec::new() });
    });
    wait
}

/// Waits for the end of a program, and then ends it: `None`.
fn ended(child: &mut Child, end: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Pictures that follow each other.
fn pictures(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut all = Vec::new();
    while let Some(at) = bytes.windows(END.len()).position(|part| part == END) {
        let (own, rest) = bytes.split_at(at + END.len());
        all.push(own);
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
        let mut tools = VideoTools::among(folder.path().as_os_str()).unwrap();
        let of = |tools: &VideoTools, video: &Path, most: u64| {
            tools.frames(video, most, |seconds| seconds as u32 / 2)
        };
        let frames = |video: &Path| of(&tools, video, 22);
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
        let error = of(&tools, &video, 21).unwrap_err();
        assert!(error.contains("more than 21 bytes"), "{error}");
        program(&tools.ffmpeg, "echo no such codec >&2; exit 1");
        let error = frames(&video).unwrap_err();
        assert!(error.contains("no such codec"), "{error}");
        program(&tools.ffprobe, "echo N/A");
        let error = frames(&video).unwrap_err();
        assert!(error.contains("no duration"), "{error}");
        // Neither one that writes nothing nor one that has written all is waited for without end.
        tools.patience = Duration::from_millis(100);
        for text in ["exec sleep 60", "echo 16.0; exec sleep 60 >&-"] {
            program(&tools.ffprobe, text);
            let error = of(&tools, &video, 22).unwrap_err();
            assert!(error.contains("took more than"), "{error}");
        }
    }
}
