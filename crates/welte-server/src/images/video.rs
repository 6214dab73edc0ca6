//! Videos in requests: a file, whose frames ffmpeg finds, or a list of frames.

use super::source::{ImageRules, bytes_at, decoded};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use welte::{Film, Frame, Video, VideoTools};

/// How long a frame of a list is shown, unless the request says otherwise.
const STEP: Duration = Duration::from_millis(500);
/// The most frames of a list.
const LISTED: u32 = 64;
/// The media type of a list of frames in one data address, as vLLM takes it.
const FRAMES: &str = "data:video/jpeg;base64,";

/// The frames of a video at these addresses: one of a file, or several of frames.
pub(super) fn frames(
    rules: &ImageRules,
    urls: &[String],
    step: Option<Duration>,
    film: &Film,
) -> Result<Video, String> {
    let pictures = u32::try_from(rules.max_images).unwrap_or(u32::MAX);
    let of_list = |all: Vec<Arc<[u8]>>| {
        // The client has chosen them.
        let film = Film {
            most: film.most.max(LISTED),
            ..*film
        };
        let most = film.frames(f64::MAX, pictures) as usize;
        spread(all, most, step.unwrap_or(STEP))
    };
    if let [url] = urls {
        if let Some(list) = url.strip_prefix(FRAMES) {
            let frame = |text: &str| decoded(text).filter(|bytes| !bytes.is_empty());
            let frames = list.split(',').map(|text| Some(frame(text)?.into()));
            let frames: Option<Vec<Arc<[u8]>>> = frames.collect();
            return frames
                .map(of_list)
                .ok_or("is not frames as base64, with commas between them".into());
        }
        if !url.starts_with("data:image/") {
            return of_file(rules, url, step, film, pictures);
        }
    }
    let frames = urls.iter().map(|url| sized(rules, url));
    Ok(of_list(frames.collect::<Result<_, String>>()?))
}

fn sized(rules: &ImageRules, url: &str) -> Result<Arc<[u8]>, String> {
    let bytes = bytes_at(rules, url)?;
    if bytes.len() > rules.largest {
        let (own, most) = (bytes.len() >> 10, rules.largest >> 10);
        return Err(format!("has {own} KiB; it may have {most}"));
    }
    Ok(bytes)
}

/// The most frames that fit, evenly spread.
fn spread(all: Vec<Arc<[u8]>>, most: usize, step: Duration) -> Video {
    let (count, own) = (all.len(), all.len().min(most.max(1)));
    let length = step * u32::try_from(count).unwrap_or(u32::MAX);
    let kept = (0..own).map(|number| number * count / own);
    let frames = kept.map(|number| Frame {
        bytes: all[number].clone(),
        at: step * number as u32,
    });
    Video {
        frames: frames.collect(),
        length,
    }
}

fn of_file(
    rules: &ImageRules,
    url: &str,
    step: Option<Duration>,
    film: &Film,
    pictures: u32,
) -> Result<Video, String> {
    if !rules.videos {
        let problem = "files of videos are not read; send frames as images, or see --allow-videos";
        return Err(problem.into());
    }
    let tools = VideoTools::find().map_err(|missing| {
        format!("videos need {missing}, which the server does not find; send frames as images")
    })?;
    let bytes = sized(rules, url)?;
    let file = Temporary::new(&bytes).map_err(|error| format!("cannot be stored: {error}"))?;
    let film = Film {
        rate: step.map(|step| 1.0 / step.as_secs_f64()).or(film.rate),
        ..*film
    };
    tools.frames(&file.0, |seconds| film.frames(seconds, pictures))
}

/// A file that only this user can read, until it is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(bytes: &[u8]) -> std::io::Result<Temporary> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("welte-video-{}-{number}", std::process::id());
        let path = Path::new(&std::env::temp_dir()).join(name);
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

    #[test]
    fn a_list_of_frames_is_thinned_out_evenly() {
        let all: Vec<Arc<[u8]>> = (0..10u8).map(|byte| [byte].into()).collect();
        let video = spread(all.clone(), 4, STEP);
        let kept: Vec<(u8, u128)> = video
            .frames
            .iter()
            .map(|frame| (frame.bytes[0], frame.at.as_millis()))
            .collect();
        assert_eq!(kept, [(0, 0), (2, 1000), (5, 2500), (7, 3500)]);
        assert_eq!(video.length, Duration::from_secs(5));
        assert_eq!(spread(all, 64, STEP).frames.len(), 10);
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
