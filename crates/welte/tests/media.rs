//! Prompts with media: what rows read, where features lie, what is cached, and what is refused.

mod common;
#[path = "common/spy.rs"]
mod spy;

use common::*;
use spy::{Spy, Watch};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use welte::{
    DeviceChoice, Engine, EngineOptions, Image, ImageSource, Images, LoadOptions, Medium, MediumAt,
    Message, Model, PrefixStoreOptions, Request, Stream,
};
use welte_table::Input;

/// With recurrent layers, and sections for the axes of images.
const AXES: &str = "synthetic:custom,arch=qwen35,layers=4,vocab=512:q8_0";
/// With windowed layers, as models have whose images attend both ways.
const BOTH_WAYS: &str = "synthetic:custom,arch=gemma3,layers=6,window=80,vocab=512:q4_0";

fn taking(features: u32, device: DeviceChoice) -> LoadOptions {
    with(options(device), |o| {
        (o.slots, o.features) = (4, features);
    })
}

/// A request for 12 tokens, with the likelihoods that were computed.
fn request(prompt: Vec<u32>, media: &[(usize, &Arc<Medium>)]) -> Request {
    with(Request::new(prompt), |r| {
        (r.options.max_tokens, r.options.ignore_end) = (12, true);
        r.options.logprobs = Some(0);
        let at = |(at, medium): &(usize, &Arc<Medium>)| MediumAt {
            at: *at,
            medium: (*medium).clone(),
        };
        r.media = media.iter().map(at).collect();
    })
}

/// The tokens, the bits of their likelihoods, and how much of the prompt was cached.
fn read(mut stream: Stream) -> (Vec<(u32, u32)>, usize) {
    let mut all = Vec::new();
    while let Some(token) = stream.next_token() {
        let token = token.unwrap();
        let known = stream.take_logprobs();
        all.extend(known.iter().map(|known| (token, known.logprob().to_bits())));
    }
    (all, stream.outcome().unwrap().cached_tokens)
}

fn alone(model: &Model, request: &Request) -> Vec<(u32, u32)> {
    let engine = Engine::new(model, &EngineOptions::default()).unwrap();
    let request = with(request.clone(), |r| r.prefix_cache = false);
    read(engine.submit(request).unwrap()).0
}

fn watched(model: &Model) -> (Engine, Arc<Watch>) {
    let watch: Arc<Watch> = Arc::default();
    let engine = Engine::on_context(model, &EngineOptions::default(), wrapped(&watch)).unwrap();
    (engine, watch)
}

type Wrap = Box<dyn FnMut(Box<dyn welte::Context>) -> Box<dyn welte::Context> + Send>;

fn wrapped(watch: &Arc<Watch>) -> Wrap {
    let watch = watch.clone();
    Box::new(move |context| Box::new(Spy::new(context, &watch, None, true)))
}

/// Alone, in small pieces, beside others, and cached: the same bits. Other features, other axes and other reaches: others.
fn same_bits(device: &DeviceChoice, source: &str, both_ways: bool) {
    let loaded = |rows| load(source, &with(taking(40, *device), |o| o.prompt_rows = rows));
    let (whole, pieces) = (loaded(128), loaded(32));
    let mut random = Random(3);
    let mut medium = || {
        let medium = random_medium(whole.feature_width(), [6, 4], &mut random);
        Arc::new(if both_ways {
            medium.attending_both_ways()
        } else {
            medium
        })
    };
    let (one, two) = (medium(), medium());
    let text = prompt(100, &whole);
    let asked = request(text.clone(), &[(9, &one), (50, &two)]);
    let wanted = alone(&whole, &asked);
    for (what, other) in [
        ("text", request(text.clone(), &[])),
        (
            "other features",
            request(text.clone(), &[(9, &two), (50, &one)]),
        ),
        (
            "another place",
            request(text.clone(), &[(9, &one), (51, &two)]),
        ),
    ] {
        assert_ne!(wanted, alone(&whole, &other), "{what}");
    }
    let axes = (0..24).map(|row| [row; 3]).collect();
    let moved = (*one).clone().with_axes(axes, 24).unwrap();
    let moved = request(text.clone(), &[(9, &Arc::new(moved)), (50, &two)]);
    let same = wanted == alone(&whole, &moved);
    assert_eq!(
        same,
        source != AXES,
        "axes matter where a model has sections"
    );
    assert_eq!(alone(&pieces, &asked), wanted, "in pieces");
    let engine = Engine::new(&pieces, &EngineOptions::default()).unwrap();
    let others = [prompt(33, &whole), prompt(70, &whole)[4..].to_vec()];
    let others = others.map(|text| request(text, &[(3, &two)]));
    let streams: Vec<Stream> = [&asked, &others[0], &asked, &others[1]]
        .into_iter()
        .map(|request| engine.submit(request.clone()).unwrap())
        .collect();
    let answers: Vec<_> = streams.into_iter().map(read).collect();
    assert_eq!((&answers[0].0, &answers[2].0), (&wanted, &wanted));
    for (answer, other) in answers[1..].iter().step_by(2).zip(&others) {
        assert_eq!(answer.0, alone(&whole, other));
    }
    let (again, cached) = read(engine.submit(asked).unwrap());
    assert_eq!(again, wanted, "cached");
    let page = pieces.program().page as usize;
    assert!(cached >= 99 / page * page, "{cached}");
}

#[test]
fn a_prompt_with_media_has_the_same_bits_however_it_is_computed() {
    for device in ["cpu", "reference"] {
        let device = device.parse().unwrap();
        same_bits(&device, TINY, false);
        same_bits(&device, AXES, false);
        same_bits(&device, BOTH_WAYS, true);
    }
}

/// Text after an image goes on at the coordinate that the image says, in prompts, steps and chains.
#[test]
fn rows_have_the_axes_of_their_media() {
    let model = load(TINY, &taking(40, DeviceChoice::CPU));
    let mut random = Random(4);
    let mut medium = |grid| Arc::new(random_medium(model.feature_width(), grid, &mut random));
    let (wide, small) = (medium([5, 2]), medium([2, 2]));
    let (engine, watch) = watched(&model);
    let asked = with(
        request(prompt(30, &model), &[(4, &wide), (14, &small)]),
        |r| r.options.logprobs = None,
    );
    read(engine.submit(asked.clone()).unwrap());
    let rows = watch.rows.lock().unwrap().clone();
    for row in rows.iter().filter(|row| row.position < 30) {
        let position = row.position;
        let want = match position {
            0..4 => (None, [position; 3]),
            4..14 => (
                Some(()),
                [4, 4 + (position - 4) / 5, 4 + (position - 4) % 5],
            ),
            14..18 => (Some(()), [9, 9 + (position - 14) / 2, 9 + position % 2]),
            // 10 features took 5 coordinates, and 4 features took 2.
            _ => (None, [position - 7; 3]),
        };
        let feature = matches!(row.input, Input::Feature(_)).then_some(());
        assert_eq!((feature, row.axes), want, "position {position}");
        if feature.is_none() {
            assert_eq!(row.token(), asked.prompt[position as usize]);
        }
    }
    assert!(rows.iter().any(|row| row.position == 29));
    let starts = watch.starts.lock().unwrap().clone();
    assert!(!starts.is_empty() && starts.iter().all(|start| start.shift == -7));
    assert!(
        starts
            .iter()
            .all(|start| start.row().axes == [start.position - 7; 3])
    );
}

/// A second question about an image computes nothing before the question, and brings nothing to the device.
#[test]
fn a_second_question_about_an_image_finds_it_cached() {
    let model = load(TINY, &taking(40, DeviceChoice::CPU));
    let mut random = Random(5);
    let image = random_medium(model.feature_width(), [6, 5], &mut random);
    let other = Arc::new(random_medium(model.feature_width(), [6, 5], &mut random));
    let (engine, watch) = watched(&model);
    let ask = |image: &Arc<Medium>, question: u32| {
        let mut text = prompt(40, &model);
        text.extend([question, 7, 9]);
        read(engine.submit(request(text, &[(6, image)])).unwrap()).1
    };
    let image = Arc::new(image);
    assert_eq!(ask(&image, 1), 0);
    let bytes = watch.written.load(SeqCst);
    assert_eq!(bytes, 4 * image.features().len());
    watch.rows.lock().unwrap().clear();
    // Equal features are the same image, wherever they come from.
    assert_eq!(ask(&Arc::new((*image).clone()), 2), 40);
    let before = |row: &&welte_table::Row| row.position < 40;
    assert_eq!(watch.rows.lock().unwrap().iter().filter(before).count(), 0);
    assert_eq!(watch.written.load(SeqCst), bytes);
    // Another image has only the text before it in common.
    assert_eq!(ask(&other, 1), 6);
    assert_eq!(watch.written.load(SeqCst), 2 * bytes);
}

/// What several requests read lies in the buffer once. What finds no room waits until others are done.
#[test]
fn media_share_the_buffer_and_wait_for_it() {
    let model = load(
        TINY,
        &with(taking(30, DeviceChoice::CPU), |o| o.prompt_rows = 256),
    );
    let mut random = Random(6);
    let mut medium = || Arc::new(random_medium(model.feature_width(), [5, 4], &mut random));
    let (one, two) = (medium(), medium());
    let watch: Arc<Watch> = Arc::default();
    let wrap = wrapped(&watch);
    let (engine, mut driver) =
        Engine::without_thread(&model, &EngineOptions::default(), wrap).unwrap();
    let text = |n: usize| prompt(60 + n, &model)[n..].to_vec();
    // All arrive before the first step, in which the second medium finds no room.
    let asked: Vec<Request> = [&one, &one, &two, &two]
        .into_iter()
        .zip(0..)
        .map(|(medium, n)| request(text(n), &[(1, medium), (30, &two)]))
        .collect();
    let streams: Vec<Stream> = asked
        .iter()
        .map(|request| engine.submit(request.clone()).unwrap())
        .collect();
    while !driver.is_idle() {
        driver.turn().unwrap();
    }
    let both = 4 * (one.features().len() + two.features().len());
    assert_eq!(watch.written.load(SeqCst), both);
    for (stream, request) in streams.into_iter().zip(&asked) {
        assert_eq!(read(stream).0, alone(&model, request));
    }
}

/// A span that attends both ways is computed once all its media have room, however early its turn comes.
#[test]
fn a_span_waits_for_its_media() {
    let loaded = with(taking(30, DeviceChoice::CPU), |o| o.prompt_rows = 32);
    let model = load(BOTH_WAYS, &loaded);
    let mut random = Random(8);
    let mut medium = || Arc::new(random_medium(model.feature_width(), [5, 4], &mut random));
    let (one, two) = (medium(), medium());
    let text = |n: usize| prompt(60 + n, &model)[n..].to_vec();
    let spanned = with(request(text(0), &[(22, &two)]), |r| {
        r.both_ways = std::iter::once(20..45).collect();
    });
    // It gets the rest of the first step, and with it room in the buffer.
    let other = request(text(1), &[(1, &one)]);
    let (engine, mut driver) =
        Engine::without_thread(&model, &EngineOptions::default(), wrapped(&Arc::default()))
            .unwrap();
    let streams = [&spanned, &other].map(|asked| engine.submit(asked.clone()).unwrap());
    while !driver.is_idle() {
        driver.turn().unwrap();
    }
    for (stream, asked) in streams.into_iter().zip([&spanned, &other]) {
        assert_eq!(read(stream).0, alone(&model, asked));
    }
    // While a span waits for one of its media, it does not hold the other in the middle of the room.
    let wide = load(
        BOTH_WAYS,
        &with(taking(40, DeviceChoice::CPU), |o| o.prompt_rows = 64),
    );
    let short = Arc::new(random_medium(wide.feature_width(), [5, 2], &mut random));
    let first = request(text(2)[..30].to_vec(), &[(2, &short)]);
    let spanned = with(request(text(3), &[(0, &one), (22, &two)]), |r| {
        r.both_ways = std::iter::once(0..45).collect();
    });
    let (waits, mut driver) =
        Engine::without_thread(&wide, &EngineOptions::default(), wrapped(&Arc::default())).unwrap();
    let streams = [&first, &spanned].map(|asked| waits.submit(asked.clone()).unwrap());
    for _ in 0..1000 {
        driver.turn().unwrap();
    }
    assert!(driver.is_idle(), "a request waits for ever");
    for (stream, asked) in streams.into_iter().zip([&first, &spanned]) {
        assert_eq!(read(stream).0, alone(&wide, asked));
    }
    // There is never room for this.
    let both = with(request(text(0), &[(2, &one), (24, &two)]), |r| {
        r.both_ways = std::iter::once(1..31).collect();
    });
    let said = engine.submit(both).err().map(|error| error.to_string());
    assert!(said.is_some_and(|said| said.contains("40 rows")));
}

#[test]
fn media_that_cannot_be_read_are_refused_by_name() {
    let model = load(TINY, &taking(16, DeviceChoice::CPU));
    let plain = load(TINY, &options(DeviceChoice::CPU));
    let width = model.feature_width();
    let rows = |rows: usize| Arc::new(Medium::new(width, vec![0.5; rows * width]).unwrap());
    let refused = |model: &Model, media: &[(usize, &Arc<Medium>)]| {
        let asked = request(prompt(20, model), media);
        match model.engine().unwrap().submit(asked) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("accepted"),
        }
    };
    let (four, many) = (rows(4), rows(17));
    let odd = Arc::new(Medium::new(width + 1, vec![0.5; width + 1]).unwrap());
    let order = "one after the other";
    for (media, why) in [
        (
            &[(2, &many)][..],
            "17 rows; the model was loaded with room for 16",
        ),
        (&[(2, &odd)], "values a row; the model reads"),
        (&[(17, &four)], order),
        (&[(usize::MAX, &four)], order),
        (&[(2, &four), (5, &four)], order),
        (&[(9, &four), (2, &four)], order),
    ] {
        let said = refused(&model, media);
        assert!(said.contains(why), "{said}");
    }
    let far = |rows: &Arc<Medium>| (**rows).clone().with_axes(vec![[0; 3]; 4], 1 << 25);
    let far = Arc::new(far(&four).unwrap());
    let said = refused(&model, &[(2, &far), (6, &far)]);
    assert!(said.contains("together"), "{said}");
    let said = refused(&plain, &[(2, &four)]);
    assert!(said.contains("without room for any"), "{said}");
    let scored = with(request(prompt(20, &model), &[(2, &four)]), |r| {
        r.options.prompt_logprobs = Some(0);
    });
    let said = model.engine().unwrap().submit(scored);
    let said = said.err().map(|error| error.to_string());
    assert!(said.is_some_and(|said| said.contains("prompt_logprobs")));
}

/// Media have numbers that another process does not know, so the disk keeps the text before the first one.
#[test]
fn the_disk_keeps_the_text_before_an_image() {
    let folder = tempfile::tempdir().unwrap();
    let loaded = || {
        load(
            TINY,
            &with(taking(16, DeviceChoice::CPU), |o| o.prefix_store = true),
        )
    };
    let model = loaded();
    let page = model.program().page as usize;
    let options = with(EngineOptions::default(), |o| {
        o.prefix_store = Some(PrefixStoreOptions {
            dir: folder.path().to_path_buf(),
            bytes: 1 << 24,
        });
    });
    let image = Arc::new(random_medium(model.feature_width(), [4, 4], &mut Random(7)));
    let asked = request(prompt(3 * page + 30, &model), &[(2 * page + 5, &image)]);
    let engine = Engine::new(&model, &options).unwrap();
    let wanted = read(engine.submit(asked.clone()).unwrap()).0;
    engine.shutdown();
    assert_eq!(engine.prefix_store().unwrap().pages_written, 2);
    let engine = Engine::new(&loaded(), &options).unwrap();
    let (again, cached) = read(engine.submit(asked).unwrap());
    assert_eq!(again, wanted);
    assert!(cached <= 2 * page, "{cached}");
}

/// A directory of a small random Qwen2-VL with a vocabulary of letters, and a template with images.
fn seeing(folder: &std::path::Path) -> String {
    let path = folder.join("model");
    welte_goldens::write("vision/qwen2_vl/hf", &path);
    let letter = |id| char::from_u32(0x100 + id).unwrap().to_string();
    let letters = (0..251u32).filter(|id| *id != 7);
    let vocab = serde_json::Map::from_iter(letters.map(|id| (letter(id), id.into())));
    let tokenizer = serde_json::json!({
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "added_tokens": [{
            "id": 7, "content": "<|image_pad|>", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false,
        }],
    });
    let template = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
        {% for p in m.content %}{% if p.type == 'image' %}<|image_pad|>{% else %}{{ p.text }}{% endif %}\
        {% endfor %}{% endif %}{% endfor %}";
    let config = serde_json::json!({ "chat_template": template });
    std::fs::write(path.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(path.join("tokenizer_config.json"), config.to_string()).unwrap();
    path.to_str().unwrap().to_string()
}

fn picture(name: &str) -> Vec<u8> {
    let folder = welte_goldens::folder().join("../../../welte-vision/tests/data/pictures");
    std::fs::read(folder.join(name)).unwrap()
}

/// An encoder that leaves steps to a stream gives the features that it gives alone, and so does the stream. What nobody wants any more
/// ends.
#[test]
fn an_encoder_runs_in_pieces_beside_a_stream() {
    let folder = tempfile::tempdir().unwrap();
    let source = seeing(folder.path());
    for device in [DeviceChoice::CPU, "reference".parse().unwrap()] {
        let options = with(options(device), |o| {
            (o.images, o.slots) = (Images::Beside, 2);
        });
        let [alone, beside] = [(); 2].map(|()| load(&source, &options));
        let see = |model: &Model, name: &str| {
            let eyes = model.eyes().unwrap();
            let mut prompt = welte::Prompt::default();
            eyes.push(&mut prompt, &eyes.see(&picture(name)).unwrap());
            prompt
        };
        let asked = with(request(vec![1, 2, 3], &[]), |r| {
            (r.options.max_tokens, r.options.ignore_end) = (100, true);
        });
        let pictures = ["square.png", "tall.png", "wide.png"];
        let want = pictures.map(|name| see(&alone, name));
        let text = read(alone.engine().unwrap().submit(asked.clone()).unwrap());
        let engine = beside.engine().unwrap();
        let before = engine.turns();
        let got = std::thread::scope(|scope| {
            let streams = [(); 3].map(|()| engine.submit(asked.clone()).unwrap());
            let seen = scope.spawn(|| pictures.map(|name| see(&beside, name)));
            for stream in streams {
                assert_eq!(read(stream).0, text.0);
            }
            seen.join().unwrap()
        });
        assert!(got == want, "other features on {}", beside.device().id);
        // A piece of every kind of command at least, each in a turn of its own.
        assert!(engine.turns() - before > 12, "{}", engine.turns() - before);
        let fresh = load(&source, &options);
        let _engine = fresh.engine().unwrap();
        for model in [&fresh, &load(&source, &options)] {
            let glimpse = model.eyes().unwrap().look(&picture("wide.png")).unwrap();
            let error = glimpse.see_while(&|| false).unwrap_err();
            assert!(matches!(error, welte::Error::Deadline), "{error}");
            assert!(
                see(model, "wide.png") == want[2],
                "after one that was given up"
            );
        }
    }
}

/// From the bytes of a picture to an answer.
#[test]
fn a_model_with_eyes_answers_about_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let source = seeing(folder.path());
    let options = with(options(DeviceChoice::CPU), |o| o.images = Images::Beside);
    let facts = Model::inspect(&source, &options).unwrap().facts();
    let images = facts.iter().find(|(name, _)| name == "images").unwrap();
    assert!(images.1.contains("room for"), "{images:?}");
    assert!(images.1.contains("besides the plan"), "{images:?}");
    let model = load(&source, &options);
    let why = model.no_images().map(str::to_string);
    let eyes = model.eyes().unwrap_or_else(|| panic!("{why:?}"));
    assert_eq!(eyes.placeholder(), "<|image_pad|>");
    let template = model.chat_template().unwrap();
    let ask = |name: &str| {
        let message = Message {
            images: vec![Image {
                at: 2,
                source: ImageSource::Bytes(picture(name).into()),
                name: name.into(),
            }],
            ..Message::new("user", "ĀāĂă")
        };
        model.encode_conversation(&template, &[message]).unwrap()
    };
    let prompt = ask("square.png");
    let [at] = &prompt.media[..] else {
        panic!("{} media", prompt.media.len());
    };
    // The letters are of two bytes, so the picture stands after the first one.
    assert_eq!((at.at, prompt.tokens[0]), (1, 0));
    let rows = at.medium.rows();
    assert_eq!(prompt.tokens.len(), 4 + rows);
    let answer = |prompt: welte::Prompt| {
        let asked = with(request(prompt.tokens, &[]), |r| r.media = prompt.media);
        read(model.engine().unwrap().submit(asked).unwrap())
    };
    let (square, _) = answer(prompt);
    assert_ne!(square, answer(ask("tall.png")).0);
    let (again, cached) = answer(ask("square.png"));
    assert_eq!(again, square);
    // All but the last token.
    assert_eq!(cached, 3 + rows);
    // Without a vocabulary the model has no eyes, and is loaded all the same.
    std::fs::remove_file(folder.path().join("model/tokenizer.json")).unwrap();
    let blind = load(&source, &options);
    assert!(blind.eyes().is_none());
    assert!(
        blind
            .no_images()
            .is_some_and(|why| why.contains("tokenizer"))
    );
    let file = with(options.clone(), |o| {
        o.images = Images::File(source.clone().into());
    });
    assert!(Model::load(&source, &file, &mut |_| ()).is_err());
}

/// The bundled model with the encoder that was trained for it. Its chat template takes only text.
#[test]
fn the_demo_model_says_what_is_in_pictures() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let model = root.join("models/demo.gguf");
    let options = with(LoadOptions::default(), |o| {
        (o.device, o.context) = (DeviceChoice::CPU, 512);
        o.images = Images::File(root.join("models/demo-eyes.gguf"));
    });
    let model = load(model.to_str().unwrap(), &options);
    let template = model.chat_template().unwrap();
    let says = |name: &str, question: &str| {
        let bytes = std::fs::read(root.join("docs/pictures").join(name)).unwrap();
        let message = Message {
            images: vec![Image {
                at: 0,
                source: ImageSource::Bytes(bytes.into()),
                name: name.into(),
            }],
            ..Message::new("user", question)
        };
        let prompt = model.encode_conversation(&template, &[message]).unwrap();
        assert_eq!(prompt.media.len(), 1);
        let asked = with(Request::new(prompt.tokens), |r| {
            (r.options.max_tokens, r.media) = (40, prompt.media);
        });
        let mut stream = model.engine().unwrap().submit(asked).unwrap();
        let tokens: Vec<u32> =
            std::iter::from_fn(|| stream.next_token().map(Result::unwrap)).collect();
        model.tokenizer().unwrap().decode(&tokens)
    };
    for (name, question, answer) in [
        ("red-ball.png", "What is in the picture?", "A red ball."),
        (
            "kite-and-boat.png",
            "What do you see?",
            "A yellow kite and a red boat.",
        ),
        (
            "umbrella.png",
            "What colour is the umbrella?",
            "The umbrella is purple.",
        ),
    ] {
        assert_eq!(says(name, question), answer, "{name}");
    }
}
