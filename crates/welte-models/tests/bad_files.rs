//! Every golden model with something missing or wrong: each reader refuses it, and none panics.

use std::borrow::Cow;
use std::sync::LazyLock;
use welte_formats::DRAFT;
use welte_formats::checkpoint::{self, Checkpoint, Metadata, Overlay, TensorInfo, Value};
use welte_goldens::Golden;
use welte_models::{
    CompileOptions, Error, VisionSpec, compile, compile_hearing, compile_speech, compile_vision,
    hearing_spec, spec, speech_spec, vision_spec,
};
use welte_table::{Part, Program, Source};

/// Tensors that a model may lack: the table of tokens is then the output too; biases of all layers; values of Gemma 4, which
/// are then the keys; the norm of LFM2-VL's projector.
fn is_optional(model: &str, tensor: &str) -> bool {
    let outputs = ["output.weight", "embed_out.weight"];
    outputs.contains(&tensor)
        || tensor.ends_with("lm_head.weight")
        || model.contains("lfm2_vl") && tensor == "mm.input_norm.weight"
        || tensor.contains("bias")
        || model.starts_with("gemma4") && tensor.ends_with("attn_v.weight")
        // DistilBERT's files lack them, and dense models of the family do.
        || model.starts_with("encoders/") && tensor == "token_types.weight"
        || model.starts_with("encoders/bge-m3") && tensor.starts_with("sparse")
}

/// What follows the name of a model whose encoder of pictures is meant.
const EYES: &str = ", its eyes";
/// The same for its encoder of sounds.
const EARS: &str = ", its ears";
/// Encoders in files of their own, and the folder of those of sound.
const MMPROJ: &str = "mmproj.gguf";
const HEARING: &str = "hearing/";

/// A file whose names, shapes and keys are changed.
struct Changed<'a> {
    file: &'a dyn Checkpoint,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Its encoder of pictures is compiled.
    eyes: bool,
    /// Its encoder of sounds is compiled.
    ears: bool,
    /// It is a model of speech.
    speech: bool,
    /// It drafts for this one.
    model: Option<&'static dyn Checkpoint>,
}

/// A model beside the drafter that is changed.
struct Drafted<'a> {
    model: &'a dyn Checkpoint,
    drafter: &'a Changed<'a>,
}

impl Overlay for Drafted<'_> {
    fn base(&self) -> &dyn Checkpoint {
        self.model
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        match name.strip_prefix(DRAFT) {
            Some(own) => Checkpoint::tensor(self.drafter, own),
            None => self.model.tensor(name),
        }
    }
    fn draft(&self) -> Option<&dyn Checkpoint> {
        Some(self.drafter)
    }
}

/// What the names of drafters begin with, and the models that they belong to.
type Model = (&'static str, Golden, Box<dyn Checkpoint>);
static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| {
    let names = [
        ("drafts/gemma4", "gemma4/effective"),
        ("drafts/dflash/f16", "gemma4/effective"),
        ("drafts/dflash/hf", "qwen3/hf"),
        ("drafts/dflash/speculators", "qwen35/hf"),
    ];
    let open = |(drafter, model)| {
        let golden = Golden::new(model);
        let file = welte_formats::open(golden.path()).expect("a model");
        (drafter, golden, file)
    };
    names.map(open).into()
});

impl Changed<'_> {
    fn of<'a>(name: &str, file: &'a dyn Checkpoint) -> Changed<'a> {
        Changed {
            eyes: name.ends_with(EYES) || name.ends_with(MMPROJ) && !name.starts_with(HEARING),
            ears: name.ends_with(EARS) || name.ends_with(MMPROJ) && name.starts_with(HEARING),
            speech: name.starts_with("speech/"),
            model: MODELS
                .iter()
                .find(|(drafter, ..)| name.starts_with(drafter))
                .map(|(_, _, model)| &**model),
            file,
            metadata: file.metadata().clone(),
            tensors: file.tensors().to_vec(),
        }
    }

    /// Compiles it for few positions: some encoders know no more. Models of speech are two programs.
    fn programs(&self) -> Result<Vec<Program>, Error> {
        let unknown = || Error::Key {
            origin: "changed".into(),
            key: "encoder".into(),
            problem: "is of no known family".into(),
        };
        if self.eyes {
            let spec = vision_spec(self)?.ok_or_else(unknown)?;
            let parts = spec.first.as_deref().into_iter().chain([&spec]);
            let program = |part: &VisionSpec| compile_vision(part, self, 4 * part.group());
            return parts.map(program).collect();
        }
        if self.ears {
            let spec = hearing_spec(self)?.ok_or_else(unknown)?;
            return compile_hearing(&spec, self);
        }
        if self.speech {
            let spec = speech_spec(self)?.ok_or_else(unknown)?;
            let programs = compile_speech(&spec, self, 1, 1)?;
            return Ok(vec![programs.encoder, programs.decoder]);
        }
        let options = CompileOptions {
            context: 32,
            ..CompileOptions::default()
        };
        if let Some(model) = self.model {
            let drafter = self;
            let both = Drafted { model, drafter };
            let options = CompileOptions {
                drafts: true,
                ..options
            };
            return Ok(vec![compile(&spec(&both)?, &both, &options)?]);
        }
        Ok(vec![compile(&spec(self)?, self, &options)?])
    }
}

/// Whether a program reads a tensor.
fn reads(programs: &[Program], name: &str) -> bool {
    let weights = programs.iter().flat_map(|program| &program.weights);
    let mut sources = weights.map(|w| &w.source);
    sources.any(|source| match source {
        Source::Parts(parts) | Source::Transposed(parts) => {
            let own = |part: &Part| part.tensor.trim_start_matches(DRAFT) == name;
            parts.iter().any(own)
        }
        Source::Chosen(_) => false,
        Source::Constant(_) => false,
    })
}

impl Overlay for Changed<'_> {
    fn base(&self) -> &dyn Checkpoint {
        self.file
    }

    fn origin(&self) -> &str {
        "changed"
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|info| info.name == name)
    }

    fn rows(
        &self,
        info: &TensorInfo,
        first: usize,
        rows: usize,
    ) -> Result<Cow<'_, [u8]>, checkpoint::Error> {
        let bytes = info.format.bytes(info.k).unwrap_or(0) * rows;
        match self.file.tensor(&info.name) {
            Some(own) if own == info => self.file.rows(info, first, rows),
            _ => Ok(Cow::Owned(vec![0; bytes])),
        }
    }
}

/// All golden models: GGUF files and directories, one of each kind and family. Those with eyes or ears come twice.
fn goldens() -> Vec<(String, Box<dyn Checkpoint>, Golden)> {
    let open = |name: String| {
        let golden = Golden::new(name.trim_end_matches(EYES).trim_end_matches(EARS));
        let file = welte_formats::open(golden.path()).unwrap_or_else(|e| panic!("{name}: {e}"));
        (name, file, golden)
    };
    let mut names = welte_goldens::names();
    // A head that drafts for a model is none, nor is an adapter. Most are compiled with their model. Those for long prompts have
    // the layers of others.
    let others = ["drafts/eagle3", "adapters/", "long/"];
    names.retain(|name| !others.iter().any(|other| name.starts_with(other)));
    let with = |folder: &str, sense: &str| -> Vec<String> {
        let own = |name: &&String| name.starts_with(folder) && name.ends_with("hf");
        let own = names.iter().filter(own);
        own.map(|name| format!("{name}{sense}")).collect()
    };
    let (eyes, ears) = (with("vision/", EYES), with(HEARING, EARS));
    assert_eq!(
        (eyes.len(), ears.len()),
        (33, 9),
        "models with eyes and ears"
    );
    let found = names.into_iter().chain(eyes).chain(ears).map(open);
    let found: Vec<_> = found.collect();
    assert!(found.len() > 100, "{} goldens", found.len());
    found
}

/// Whether an error names the tensor, perhaps without the model's prefix, or what several tensors of an encoder say together.
fn is_named(error: &Error, tensor: &str) -> bool {
    let text = error.to_string();
    let own = tensor.trim_start_matches("model.");
    // Where a name tells writers of files apart, that of another writer is missed.
    text.contains(own) || text.contains("vision encoder: ") || text.ends_with("is missing")
}

#[test]
fn a_missing_tensor_is_refused() {
    let mut silent = Vec::new();
    for (name, file, _golden) in goldens() {
        let all = Changed::of(&name, &*file);
        let programs = all.programs().unwrap_or_else(|e| panic!("{name}: {e}"));
        for i in 0..all.tensors.len() {
            let mut changed = Changed::of(&name, &*file);
            let gone = changed.tensors.remove(i).name;
            match changed.programs() {
                Ok(_) if !reads(&programs, &gone) || is_optional(&name, &gone) => {}
                // Another one may be missing then: one matrix in place of two.
                Err(Error::Tensor { .. }) => {}
                Err(e) if is_named(&e, &gone) => {}
                // They tell LLaVA-NeXT from its forerunner, and DeepSeek-OCR's encoders from others.
                Err(e)
                    if (gone == "model.image_newline" || gone.contains("sam_model"))
                        && e.to_string().contains("no known family") => {}
                Ok(_) => silent.push(format!("{name}: without {gone}")),
                Err(e) => silent.push(format!("{name}: without {gone}: {e}")),
            }
        }
    }
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}

#[test]
fn a_tensor_of_a_wrong_shape_is_refused() {
    let mut silent = Vec::new();
    for (name, file, _golden) in goldens() {
        for i in 0..file.tensors().len() {
            let own = &file.tensors()[i];
            let wider = TensorInfo {
                k: own.k + own.format.block(),
                ..own.clone()
            };
            let longer = TensorInfo {
                n: own.n + 1,
                ..own.clone()
            };
            for info in [wider, longer] {
                let mut changed = Changed::of(&name, &*file);
                // The tables of tokens say how many there are, the last matrices of projectors how wide a feature is.
                let last = [
                    "mm.model.fc.weight",
                    "mm.input_projection.weight",
                    "mm.a.mlp.2.weight",
                ];
                // The head of Apertus 1.5 may know a part of the tokens.
                let head = name.starts_with("apertus1p5") && info.n > own.n;
                let counts = info.n > own.n && info.name.contains("emb")
                    || head && ["output.weight", "lm_head.weight"].contains(&info.name.as_str())
                    || last.contains(&info.name.as_str());
                changed.tensors[i] = info.clone();
                match changed.programs() {
                    Ok(programs) if counts || !reads(&programs, &info.name) => {}
                    Ok(_) => silent.push(format!("{name}: {info:?}")),
                    Err(Error::Tensor { .. }) => {}
                    Err(e) if is_named(&e, &info.name) => {}
                    // A drafter must know as many tokens as its model.
                    Err(e) if counts && e.to_string().contains("vocab_size") => {}
                    Err(e) => silent.push(format!("{name}: {info:?}: {e}")),
                }
            }
        }
    }
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}

/// The key of drafters of blocks in files, beside those of tokenizers that these readers do not look at.
const MASK: &str = "tokenizer.ggml.mask_token_id";

/// One of the goldens.
fn golden(name: &str) -> Box<dyn Checkpoint> {
    welte_formats::open(Golden::new(name).path()).expect("a golden")
}

/// llama.cpp's first converter counted layers from 0 for their outputs, and named the norm of the taps otherwise; both kinds know both keys
/// of the mask.
#[test]
fn files_of_the_first_converter_read_the_same_layers() {
    let name = "drafts/dflash/f16.gguf";
    let file = golden(name);
    let passes = |changed: &Changed<'_>| {
        let programs = changed.programs().unwrap_or_else(|e| panic!("{e}"));
        format!("{:?}", programs[0].passes)
    };
    let list = |layers: [u64; 2]| Value::Array(layers.map(Value::U64).to_vec());
    let plain = Changed::of(name, &*file);
    let wanted = passes(&plain);
    let mut early = Changed::of(name, &*file);
    for tensor in &mut early.tensors {
        tensor.name = tensor.name.replace("enc.output_norm", "hidden_norm");
    }
    let layers = "dflash.target_layers".to_string();
    assert_ne!(passes(&early), wanted, "its list is read otherwise");
    early.metadata.insert(layers, list([4, 1]));
    assert_eq!(passes(&early), wanted);
    let mut other_key = Changed::of(name, &*file);
    let mask = other_key.metadata.remove(MASK).expect("a mask");
    let key = "dflash.mask_token_id".to_string();
    other_key.metadata.insert(key.clone(), mask.clone());
    assert_eq!(passes(&other_key), wanted);
    early.metadata.remove(MASK);
    early.metadata.insert(key, mask);
    assert_eq!(passes(&early), wanted);
}

/// A list of layers has no more of them than the model.
#[test]
fn a_long_list_of_layers_is_refused() {
    for (name, key) in [
        ("drafts/dflash/f16.gguf", "dflash.target_layers"),
        ("drafts/dflash/hf", "dflash_config.target_layer_ids"),
        ("drafts/dflash/speculators", "aux_hidden_state_layer_ids"),
    ] {
        let file = golden(name);
        let mut changed = Changed::of(name, &*file);
        assert!(changed.metadata.contains_key(key), "{name}: {key}");
        let long = Value::Array(vec![Value::U64(1); 1 << 16]);
        changed.metadata.insert(key.to_string(), long);
        let error = changed.programs().expect_err("a refusal");
        assert!(error.is_of_contents(), "{name}: {error}");
        let said = format!("{key}: names 65536 layers; the model has");
        assert!(error.to_string().contains(&said), "{name}: {error}");
    }
}

/// A wrong value may be allowed, or may make another key or tensor wrong. No value makes a reader panic, or blame the options.
#[test]
fn a_wrong_key_is_an_error_of_the_contents() {
    let mut silent = Vec::new();
    for (name, file, _golden) in goldens() {
        for key in file.metadata().keys() {
            if key.starts_with("tokenizer.") && key != MASK {
                continue;
            }
            let wrong = [
                None,
                Some(Value::U64(0)),
                Some(Value::U64(u64::MAX)),
                Some(Value::I64(-1)),
                Some(Value::F64(f64::NAN)),
                Some(Value::String("wrong".into())),
                Some(Value::Array(Vec::new())),
            ];
            for value in wrong {
                let mut changed = Changed::of(&name, &*file);
                match value.clone() {
                    Some(value) => changed.metadata.insert(key.clone(), value),
                    None => changed.metadata.remove(key),
                };
                match changed.programs() {
                    Ok(_) => {}
                    Err(e) if e.is_of_contents() => {}
                    Err(e) => silent.push(format!("{name}: {key} = {value:?}: {e}")),
                }
            }
        }
    }
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}
