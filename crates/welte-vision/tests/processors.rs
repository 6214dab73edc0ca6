//! Pictures as transformers' processors make them (`tools/goldens/vision.py`): sizes, pixels, and what stands in the prompt.

use serde_json::Value;
use std::path::{Path, PathBuf};
use welte_vision::{
    Error, Filter, Growth, Limits, Marks, Method, Piece, Pixels, Processor, Tile, Values, decode,
    resize,
};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// The processor of a golden's model, and the token that it writes for a feature.
fn processor(model: &str) -> (Processor, &'static str) {
    let tiles = Method::Tiles {
        longest: 96,
        tile: 32,
        split: true,
    };
    let pixels = Method::Pixels {
        least: 64,
        most: 1600,
        grows: Growth::None,
    };
    let axes = Marks::Axes("<|image_pad|>");
    let longest = |longest| Method::Longest { longest };
    let (method, filter, patch, merge, marks, token) = match model {
        "smolvlm" => (tiles, Filter::Lanczos, 8, 2, Marks::Tiles, "<image>"),
        "gemma3" => {
            let method = Method::Square { side: 32 };
            let token = "<image_soft_token>";
            (method, Filter::Bilinear, 8, 2, Marks::GEMMA3, token)
        }
        "gemma3_scan" => {
            let method = Method::Scan {
                side: 32,
                least: 16,
                most: 3,
                ratio: 1.2,
            };
            let token = "<image_soft_token>";
            (method, Filter::Bilinear, 8, 2, Marks::GEMMA3, token)
        }
        "minicpmv4" => {
            let method = Method::Slices { side: 32, most: 4 };
            (
                method,
                Filter::Bicubic,
                4,
                1,
                Marks::Slices {
                    numbered: true,
                    placeholder: "(<image>./</image>)",
                },
                "<unk>",
            )
        }
        "minicpmv4_6" | "minicpmv4_6_4x" => {
            let method = Method::Slices { side: 32, most: 4 };
            let marks = Marks::Slices {
                numbered: true,
                placeholder: "<|image_pad|>",
            };
            let merge = if model.ends_with("4x") { 2 } else { 4 };
            (method, Filter::Bicubic, 4, merge, marks, "<|image_pad|>")
        }
        "llava" => {
            let method = Method::Middle {
                side: 32,
                even: false,
            };
            (method, Filter::Bicubic, 8, 1, Marks::Lined, "<image>")
        }
        "jina_clip" => {
            let method = Method::Middle {
                side: 33,
                even: true,
            };
            (method, Filter::Bicubic, 8, 1, Marks::Lined, "<image>")
        }
        "gemma4" => {
            let token = "<|image|>";
            let marks = Marks::Between {
                placeholder: token,
                around: ["<|image>", "<image|>"],
                both_ways: false,
            };
            let method = Method::Fill { most: 70 };
            (method, Filter::Bicubic, 4, 3, marks, token)
        }
        "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" => {
            (pixels, Filter::Bicubic, 4, 2, axes, "<|image_pad|>")
        }
        "kimi" => {
            let token = "<|media_pad|>";
            let marks = Marks::Between {
                placeholder: token,
                around: ["", ""],
                both_ways: false,
            };
            let (most, side) = (100, 512);
            let method = Method::Bordered { most, side };
            (method, Filter::Bicubic, 4, 2, marks, token)
        }
        "glm4v" | "glm4v_moe" | "glm_ocr" => {
            let method = Method::Pixels {
                least: 64,
                most: 1600,
                grows: Growth::Whole,
            };
            let token = "<|image|>";
            (method, Filter::Bicubic, 4, 2, Marks::Axes(token), token)
        }
        "paddleocr_vl" => {
            let method = Method::Pixels {
                least: 64,
                most: 1600,
                grows: Growth::Sides,
            };
            let token = "<|IMAGE_PLACEHOLDER|>";
            (method, Filter::Bicubic, 4, 2, Marks::Axes(token), token)
        }
        "pixtral" => (longest(40), Filter::Bicubic, 4, 1, Marks::Lines, "[IMG]"),
        "mistral3" => (longest(64), Filter::Bicubic, 4, 2, Marks::Lines, "[IMG]"),
        "lfm2_vl" => {
            let method = Method::Grid {
                tile: 32,
                count: [2, 4],
                features: [2, 3],
                whole: true,
            };
            (method, Filter::Bilinear, 8, 2, Marks::Grid, "<image>")
        }
        "deepseek_ocr" | "deepseek_ocr2" => {
            let method = Method::Views {
                tile: 48,
                count: [2, 4],
                side: 64,
                border: [127; 3],
                lined: model == "deepseek_ocr",
            };
            (method, Filter::Bicubic, 4, 4, Marks::Lined, "<image>")
        }
        "internvl" => {
            let count = [1, 4];
            let method = Method::Canvas { tile: 32, count };
            let token = "<IMG_CONTEXT>";
            (method, Filter::Bicubic, 8, 2, Marks::Canvas, token)
        }
        "llava_next" | "granite_vision" => {
            let method = Method::Padded { tile: 32 };
            (method, Filter::Bicubic, 8, 1, Marks::Lined, "<image>")
        }
        "granite4_vision" => {
            let method = Method::Padded { tile: 32 };
            (method, Filter::Bicubic, 4, 2, Marks::Lined, "<image>")
        }
        other => panic!("{other} is not a model of the goldens"),
    };
    let processor = Processor {
        method,
        filter,
        patch,
        merge,
        neighbours: merge,
        window: None,
        values: Values::Planes { frames: 1 },
        mean: [0.5; 3],
        deviation: [0.5; 3],
        sizes: vec![[32, 64], [64, 32], [64, 64], [96, 32], [32, 96]],
        part: (model == "minicpmv4_6").then_some(2),
        queries: match model {
            "minicpmv4" => 4,
            "jina_clip" => 1,
            _ => 0,
        },
        most_features: 1280,
        ticks: None,
        marks,
    };
    (processor, token)
}

fn picture(name: &str) -> Pixels {
    let bytes = std::fs::read(data().join("pictures").join(name)).expect("a picture");
    decode(&bytes, Limits::of_pixels(1 << 20)).expect("it can be decoded")
}

#[test]
fn tiles_and_layouts_are_those_of_the_processors() {
    let text = std::fs::read_to_string(data().join("processors.json")).expect("a list");
    let list: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    assert_eq!(list.len(), 83);
    for entry in list {
        let text = |key: &str| entry[key].as_str().expect("text");
        let what = format!("{} of {}", text("picture"), text("model"));
        let (processor, token) = processor(text("model"));
        let prepared = processor.prepare(&picture(text("picture"))).expect("tiles");
        let sizes = prepared
            .tiles
            .iter()
            .map(|t| [t.pixels.height, t.pixels.width]);
        let sizes: Vec<_> = sizes.collect();
        assert_eq!(serde_json::json!(sizes), entry["tiles"], "{what}");
        let bytes = std::fs::read(data().join(text("pixels"))).expect("pixels");
        let tiles = prepared.tiles.iter().flat_map(|t| &t.pixels.bytes);
        let furthest = tiles.zip(&bytes).map(|(a, b)| a.abs_diff(*b)).max();
        assert_eq!(furthest, Some(0), "{what}: pixels");
        let mut layout = String::new();
        let mut next = 0;
        for piece in prepared.layout() {
            match piece {
                Piece::Text(text) => layout += &text,
                Piece::Features { first, axes, .. } => {
                    assert_eq!(first, next, "{what}");
                    next += axes.len();
                    layout += &token.repeat(axes.len());
                }
            }
        }
        assert_eq!(layout, text("layout"), "{what}");
        assert_eq!(next, prepared.count(), "{what}");
    }
}

#[test]
fn patches_lie_in_the_encoders_order() {
    let (mut processor, _) = processor("qwen2_5_vl");
    (processor.patch, processor.window) = (1, Some(2));
    processor.values = Values::Planes { frames: 2 };
    // Pixels that are their own numbers.
    let bytes = (0..6 * 4).flat_map(|i| [i, 100 + i, 200 + i]).collect();
    let pixels = Pixels {
        width: 6,
        height: 4,
        bytes,
    };
    let rows = processor.rows(&Tile::still(pixels.clone()));
    // Features of 2 x 2 pixels: two windows, the second one half as wide.
    assert_eq!(rows.features, [0, 1, 3, 4, 2, 5]);
    let value = |byte: u8| (f32::from(byte) / 255.0 - 0.5) / 0.5;
    let width = processor.width() as usize;
    let firsts = rows.values.chunks_exact(width).map(|patch| patch[0]);
    let order = [
        0, 1, 6, 7, 2, 3, 8, 9, 12, 13, 18, 19, 14, 15, 20, 21, 4, 5, 10, 11, 16, 17, 22, 23,
    ];
    assert_eq!(firsts.collect::<Vec<_>>(), order.map(value));
    let [first, second] = [0, 100].map(value);
    assert_eq!(rows.values[..3], [first, first, second]);
    // A second frame of other pixels; a third one would be like it.
    let mut tile = Tile::still(pixels.clone());
    tile.later.push(Pixels {
        bytes: pixels.bytes.iter().map(|byte| byte + 1).collect(),
        ..pixels
    });
    let [first, second, red] = [0, 1, 101].map(value);
    let rows = processor.rows(&tile);
    assert_eq!(rows.values[..3], [first, second, value(100)]);
    processor.values = Values::Frames { frames: 2 };
    let rows = processor.rows(&tile);
    assert_eq!(rows.values[3..5], [second, red]);
    assert_eq!(tile.frame(2), tile.frame(1));
    assert_eq!(rows.places[5], [0, 0, 3]);
    assert_eq!(rows.places[16], [1, 0, 4]);
    processor.values = Values::Pixels;
    let rows = processor.rows(&Tile::still(Pixels {
        width: 2,
        height: 2,
        bytes: (0..12).collect(),
    }));
    assert_eq!(rows.values[..6], [0, 1, 2, 3, 4, 5].map(value));
}

#[test]
fn features_are_bounded() {
    let large = Pixels {
        width: 900,
        height: 700,
        bytes: vec![9; 900 * 700 * 3],
    };
    for model in ["qwen2_5_vl", "pixtral", "mistral3"] {
        let (mut processor, _) = processor(model);
        (processor.most_features, processor.patch) = (70, 4);
        match &mut processor.method {
            Method::Pixels { most, .. } => *most = 1 << 30,
            Method::Longest { longest } => *longest = 900,
            _ => {}
        }
        let count = processor.prepare(&large).expect("tiles").count();
        assert!((40..=70).contains(&count), "{model}: {count} features");
        assert!(processor.most_patches() as usize >= count * (processor.merge as usize).pow(2));
    }
    let thin = |height| Pixels {
        width: 1,
        height,
        bytes: vec![0; 3 * height as usize],
    };
    for model in ["qwen2_vl", "gemma3", "smolvlm", "internvl"] {
        let (processor, _) = processor(model);
        let error = processor.prepare(&thin(300)).expect_err("too thin");
        assert!(matches!(error, Error::Shape { most: 200, .. }), "{error}");
    }
    let (mut processor, _) = processor("lfm2_vl");
    if let Method::Grid { count, .. } = &mut processor.method {
        *count = [1, 1];
    }
    let error = processor.prepare(&thin(190)).expect_err("too thin");
    assert!(matches!(error, Error::Features { most: 4, .. }), "{error}");
}

/// As transformers' processor of PaddleOCR-VL does.
#[test]
fn small_pictures_grow_first() {
    let (processor, _) = processor("paddleocr_vl");
    for (width, height, want) in [(5, 9, [8, 16]), (60, 3, [160, 8])] {
        let pixels = Pixels {
            width,
            height,
            bytes: vec![7; (3 * width * height) as usize],
        };
        let prepared = processor.prepare(&pixels).expect("a tile");
        let tile = &prepared.tiles[0].pixels;
        assert_eq!([tile.width, tile.height], want);
    }
}

#[test]
fn every_filter_keeps_an_even_picture_even() {
    let even = Pixels {
        width: 7,
        height: 5,
        bytes: vec![77; 105],
    };
    for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
        for (width, height) in [(1, 1), (7, 5), (3, 40), (40, 3)] {
            let new = resize(&even, width, height, filter);
            assert_eq!(new.bytes, vec![77; (width * height * 3) as usize]);
        }
    }
}

/// LLaVA 1.5: the middle of a picture, whose features stand in one run.
#[test]
fn the_middle_is_cut_out() {
    let (mut processor, _) = processor("llava_next");
    let even = false;
    (processor.method, processor.patch) = (Method::Middle { side: 4, even }, 2);
    for (width, height) in [(9, 4), (4, 9)] {
        let column = |i: u32| if width > height { i % width } else { i / width };
        let bytes = (0..width * height).flat_map(|i| [column(i) as u8; 3]);
        let pixels = Pixels {
            width,
            height,
            bytes: bytes.collect(),
        };
        let prepared = processor.prepare(&pixels).expect("a tile");
        let tile = &prepared.tiles[0].pixels;
        assert_eq!([tile.width, tile.height], [4, 4]);
        let along = if width > height { 3 } else { 12 };
        let found: Vec<u8> = tile.bytes.iter().step_by(along).take(4).copied().collect();
        assert_eq!(found, [2, 3, 4, 5], "{width} by {height}");
        let [Piece::Features { axes, .. }] = &prepared.layout()[..] else {
            panic!("{:?}", prepared.layout());
        };
        assert_eq!(axes.len(), 4);
    }
}
