//! Spectrograms against transformers (`tools/goldens/speech.py`).

use welte_audio::{LogMel, Mel, RATE, Recipe};

/// Tones that rise and fall over noise, as the script makes them.
fn sound(count: usize) -> Vec<f32> {
    let sample = |n: usize| {
        let hash = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let noise = hash as f64 / f64::from(1 << 24) - 0.5;
        let t = n as f64 / f64::from(RATE);
        let turn = 2.0 * std::f64::consts::PI;
        let tones = (turn * (200.0 * t + 300.0 * t * t)).sin() * 0.4
            + (turn * 1700.0 * t).sin() * 0.2 * (turn * 3.0 * t).sin();
        (tones + 0.02 * noise) as f32
    };
    (0..count).map(sample).collect()
}

#[test]
fn spectrograms_agree_with_transformers() {
    for bins in [80, 128] {
        let path = format!("{}/tests/data/mel{bins}.f32", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(&path).expect("the features");
        let want: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let found = Mel::new(bins).spectrogram(&sound(RATE as usize + 10), 0);
        assert_eq!(found.frames(), 100);
        // Every third frame is kept, the first and the last among them.
        let frames = (0..100).step_by(3).flat_map(|number| found.frame(number));
        let frames: Vec<f32> = frames.copied().collect();
        assert_eq!(frames.len(), want.len());
        let worst = frames
            .iter()
            .zip(&want)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(worst < 1e-4, "{bins} bins: {worst}");
        // Silence need not be there to be heard.
        let mut longer = sound(RATE as usize + 10);
        let short = Mel::new(bins).spectrogram(&longer, 500);
        longer.extend([0.0; 500]);
        assert_eq!(short, Mel::new(bins).spectrogram(&longer, 0));
    }
}

/// The other families' (`tools/goldens/conformers.py`), which frame and filter in their own ways.
#[test]
fn spectrograms_of_conformers_agree_with_transformers() {
    for (name, recipe, bins, frames) in [
        ("gemma3n", Recipe::Gemma3n, 16, 10),
        ("gemma4", Recipe::Gemma4, 16, 12),
        ("granite_speech", Recipe::GraniteSpeech, 16, 13),
        ("lfm2_audio", Recipe::FastConformer, 24, 13),
    ] {
        let path = format!("{}/tests/data/{name}.f32", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(&path).expect("the features");
        let each = bytes.chunks_exact(4);
        let want = each.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let want: Vec<f32> = want.collect();
        let found = LogMel::new(recipe, bins).spectrogram(&sound(2000));
        assert_eq!(found.frames(), frames, "{name}");
        // Granite Speech has no use for a frame without a neighbour.
        assert_eq!(
            frames - want.len() / bins,
            frames % 2 * usize::from(name == "granite_speech")
        );
        let off = found.values.iter().zip(&want).map(|(a, b)| (a - b).abs());
        let worst = off.fold(0.0, f32::max);
        assert!(worst < 1e-4, "{name}: {worst}");
    }
}

/// A sound that is too short for a frame has none.
#[test]
fn short_sounds_have_no_frames() {
    for (recipe, most) in [(Recipe::Gemma3n, 512), (Recipe::Gemma4, 160)] {
        let frames = |samples: usize| {
            let found = LogMel::new(recipe, 16).spectrogram(&sound(samples));
            assert_eq!(found.frames(), recipe.frames(samples), "{recipe:?}");
            found.frames()
        };
        assert_eq!(
            [0, 1, most, most + 1].map(frames),
            [0, 0, 0, 1],
            "{recipe:?}"
        );
    }
}

/// Less than a step has no frame; one step has a frame, which has no variance, and the zeros at the end.
#[test]
fn a_fast_conformer_hears_whole_steps() {
    let spectrogram =
        |samples: usize| LogMel::new(Recipe::FastConformer, 24).spectrogram(&sound(samples));
    assert_eq!([0, 1, 159].map(|count| spectrogram(count).frames()), [0; 3]);
    let found = spectrogram(160);
    assert_eq!(found.frames(), 2);
    assert!(found.values.iter().all(|v| *v == 0.0), "{found:?}");
}
