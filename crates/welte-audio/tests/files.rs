//! Files of every kind, whole, cut off and damaged. `data/tone.*` hold a quarter of a second of 440 Hz, as ffmpeg wrote it.

use welte_audio::{Audio, Error, Limits, RATE, decode, decode_while};

const KINDS: [&str; 5] = ["flac", "m4a", "mkv", "mp3", "ogg"];

fn file(kind: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/tone.{kind}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A sound file of 16 bits per sample: 440 Hz in every channel, each a bit louder than the one before it.
fn wav(rate: u32, channels: u16, seconds: f32) -> Vec<u8> {
    let frames = (rate as f32 * seconds) as u32;
    let size = frames * u32::from(channels) * 2;
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((36 + size).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0");
    bytes.extend(channels.to_le_bytes());
    bytes.extend(rate.to_le_bytes());
    bytes.extend((rate * 2 * u32::from(channels)).to_le_bytes());
    bytes.extend((2 * channels).to_le_bytes());
    bytes.extend(16u16.to_le_bytes());
    bytes.extend(b"data");
    bytes.extend(size.to_le_bytes());
    for frame in 0..frames {
        let turn = f64::from(frame) / f64::from(rate) * 440.0 * 2.0 * std::f64::consts::PI;
        for channel in 0..channels {
            let sample = turn.sin() * 3000.0 * f64::from(channel + 1);
            bytes.extend((sample as i16).to_le_bytes());
        }
    }
    bytes
}

/// How much of a sound is 440 Hz, and its amplitude.
fn tone(samples: &[f32]) -> (f64, f64) {
    let (mut sine, mut cosine, mut power) = (0.0, 0.0, 0.0);
    for (at, sample) in samples.iter().enumerate() {
        let turn = at as f64 / f64::from(RATE) * 440.0 * 2.0 * std::f64::consts::PI;
        let sample = f64::from(*sample);
        sine += sample * turn.sin();
        cosine += sample * turn.cos();
        power += sample * sample;
    }
    let count = samples.len() as f64;
    let own = 2.0 * (sine * sine + cosine * cosine) / count;
    (
        own / power,
        2.0 * (sine * sine + cosine * cosine).sqrt() / count,
    )
}

fn inner(audio: &Audio) -> &[f32] {
    &audio.samples[audio.samples.len() / 5..audio.samples.len() * 4 / 5]
}

#[test]
fn every_kind_of_file_is_read() {
    let limits = Limits::default();
    for kind in KINDS {
        let audio = decode(file(kind), &limits).unwrap_or_else(|e| panic!("{kind}: {e}"));
        assert_eq!((audio.rate, audio.channels), (22_050, 2), "{kind}");
        assert!((0.2..0.4).contains(&audio.seconds()), "{kind}");
        let (share, amplitude) = tone(inner(&audio));
        assert!(share > 0.98, "{kind}: {share}");
        assert!((0.08..0.1).contains(&amplitude), "{kind}: {amplitude}");
    }
    for (rate, channels) in [
        (16_000, 1),
        (8_000, 8),
        (192_000, 8),
        (44_100, 2),
        (1_000, 1),
    ] {
        let audio = decode(wav(rate, channels, 0.5), &limits).expect("a sound");
        assert_eq!((audio.rate, audio.channels), (rate, usize::from(channels)));
        assert_eq!(audio.samples.len(), 8_000);
        let (share, amplitude) = tone(inner(&audio));
        let mean = 3000.0 * f64::from(channels + 1) / 2.0 / 32_768.0;
        assert!(share > 0.99, "{rate} Hz: {share}");
        assert!(
            (amplitude / mean - 1.0).abs() < 0.02,
            "{rate} Hz: {amplitude} {mean}"
        );
    }
}

#[test]
fn files_that_exceed_limits_are_refused() {
    let limits = Limits {
        seconds: 1,
        channels: 8,
        ..Limits::default()
    };
    for (bytes, problem) in [
        (wav(8_000, 1, 1.5), "more than 1 seconds"),
        (wav(8_000, 9, 0.1), "9 channels"),
        (wav(400_000, 1, 0.1), "400000 Hz"),
        (wav(500, 1, 0.1), "500 Hz"),
    ] {
        let error = decode(bytes, &limits).expect_err(problem).to_string();
        assert!(error.contains(problem), "{error}");
    }
    assert_eq!(decode(Vec::new(), &limits), Err(Error::Empty));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/opus.ogg");
    let opus = std::fs::read(path).expect("a file");
    let error = decode(opus, &limits).expect_err("Opus").to_string();
    assert!(error.contains("convert it to WAV"), "{error}");
}

/// A FLAC file of silence at 384 kHz in 8 channels: blocks of 4096 frames, each of about 40 bytes.
fn silence(blocks: u8) -> Vec<u8> {
    let crc = |bytes: &[u8], bits: u32, polynomial: u32| {
        let mut sum = 0u32;
        for byte in bytes {
            sum ^= u32::from(*byte) << (bits - 8);
            for _ in 0..8 {
                let carry = sum >> (bits - 1) & 1;
                sum = (sum << 1) ^ (carry * polynomial);
            }
        }
        sum & ((1 << bits) - 1)
    };
    let mut file = b"fLaC\x80\0\0\x22".to_vec();
    file.extend([0x10, 0, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    let format: u64 = 384_000 << 44 | 7 << 41 | 15 << 36 | (u64::from(blocks) * 4096);
    file.extend(format.to_be_bytes());
    file.extend([0; 16]);
    for block in 0..blocks {
        let mut frame = vec![0xff, 0xf8, 0xc0, 0x78, block];
        frame.push(crc(&frame, 8, 0x07) as u8);
        frame.extend([0; 3 * 8]);
        let sum = crc(&frame, 16, 0x8005) as u16;
        frame.extend(sum.to_be_bytes());
        file.extend(frame);
    }
    file
}

/// Small files may hold many samples, which take time even where they become few.
#[test]
fn samples_of_all_channels_are_bounded() {
    let file = silence(40);
    let mut limits = Limits::lasting(60);
    let audio = decode(file.clone(), &limits).expect("silence");
    assert_eq!((audio.rate, audio.channels), (384_000, 8));
    assert_eq!(audio.samples.len(), 40 * 4096 / 24 + 1);
    limits.values = 1 << 20;
    let error = decode(file, &limits).expect_err("too many").to_string();
    assert!(error.contains("more than 1048576 samples"), "{error}");
    // As many as 384 kHz in 8 channels has in half a minute may be in any file, and 40 minutes of 96 kHz in stereo.
    assert!(Limits::lasting(1).values > 30 * 384_000 * 8);
    assert_eq!(Limits::lasting(2400).values, 2400 * 192_000);
}

#[test]
fn damaged_files_are_read_or_refused() {
    let limits = Limits {
        seconds: 60,
        ..Limits::default()
    };
    let mut random = 7u64;
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % below
    };
    let files = KINDS.map(file).into_iter().chain([wav(8_000, 1, 0.25)]);
    for (number, whole) in files.enumerate() {
        for round in 0..60 {
            let mut bytes = whole.clone();
            if round % 3 == 0 {
                bytes.truncate(next(whole.len()));
            }
            // Heads are short, so half of the damage goes there.
            let end = if round % 2 == 0 {
                bytes.len().min(200)
            } else {
                bytes.len()
            };
            for _ in 0..(round % 5).min(end) {
                let at = next(end);
                bytes[at] = [0, 0xff, next(256) as u8][next(3)];
            }
            let most = limits.seconds as usize * RATE as usize;
            // A packet may exceed the limit, but not by much.
            if let Ok(audio) = decode(bytes, &limits) {
                assert!(audio.samples.len() < most + most / 2, "{number}, {round}");
                assert!(audio.samples.iter().all(|v| v.is_finite()));
            }
        }
    }
}

/// Nobody waits for it: the file is not decoded to its end.
#[test]
fn what_is_not_wanted_is_given_up() {
    let left = std::cell::Cell::new(3);
    let wanted = || {
        left.set(left.get() - 1);
        left.get() > 0
    };
    let done = decode_while(wav(8_000, 1, 60.0), &Limits::default(), &wanted);
    assert_eq!((done, left.get()), (Err(Error::Unwanted), 0));
}
