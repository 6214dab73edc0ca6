//! `welte embed`: vectors of texts, as JSON lines.

use crate::flags::{LoadArgs, pooling};
use crate::texts::{self, Text, TextArgs};
use crate::{images, source};
use anyhow::Context;
use serde_json::json;
use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use welte::{Embedding, Error, Images, Model, Pooling, SparseEmbedding, TextToEmbed};

#[derive(clap::Args)]
pub(crate) struct EmbedArgs {
    /// A model (file, directory or synthetic:SHAPE:FORMAT) unless -m names it, and texts
    #[arg(value_name = "[MODEL] TEXT")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    texts: TextArgs,
    /// An image that gets a vector, after the texts (repeatable); models that generate text read it as the message of a user
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Rows that make the vector: last, mean or cls; or splade, which is sparse [default: as the model says, else last]
    #[arg(long, value_name = "KIND", value_parser = pooling)]
    pooling: Option<Pooling>,
    /// Scale vectors to length 1 [default: as the model says]
    #[arg(long, alias = "normalize", conflicts_with = "no_normalise")]
    normalise: bool,
    /// Leave vectors as long as the model makes them
    #[arg(long, alias = "no-normalize")]
    no_normalise: bool,
    /// Keep the first N values, for models that were trained for it (Matryoshka)
    #[arg(long, value_name = "N")]
    dimensions: Option<usize>,
    /// Text to put before every text, such as an instruction
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_name")]
    prefix: Option<String>,
    /// Put this prompt of the model before every text, such as query or document
    #[arg(long, value_name = "NAME")]
    prompt_name: Option<String>,
    /// Add the token weights of each text, for models that have them (BGE-M3, SPLADE)
    #[arg(long, conflicts_with = "image")]
    sparse: bool,
    /// Cut texts that do not fit in the context
    #[arg(long)]
    truncate: bool,
}

impl EmbedArgs {
    /// An encoder in the model's repository is of use.
    pub(crate) fn wants_encoder(&self) -> bool {
        !self.image.is_empty()
    }
}

pub(crate) fn run(args: &EmbedArgs) -> anyhow::Result<ExitCode> {
    let (source, words) = texts::split_words(args.load.model.as_deref(), &args.words)?;
    let texts = if !args.wants_encoder() || !words.is_empty() || !args.texts.file.is_empty() {
        args.texts.read(words)?
    } else {
        Vec::new()
    };
    let mut options = args.load.options()?;
    anyhow::ensure!(
        options.adapters.is_empty() && options.max_adapters == 0,
        "--lora: adapters are for texts that are generated"
    );
    (options.embeddings, options.pooling) = (true, args.pooling);
    options.slots = args.texts.batch;
    // Texts do not need the encoder.
    if args.wants_encoder() {
        options.images = Images::Beside;
    }
    let model = source::load_with(&source, &options)?;
    let shape = Shape::of(&model, args)?;
    let engine = model.engine()?;
    let mut out = std::io::BufWriter::new(crate::terminal::stdout());
    // As many as the engine computes together, and as many that wait.
    let mut begun = VecDeque::new();
    let images = args.image.iter().map(|path| Item::Image(path));
    let mut items = texts.iter().map(Item::Text).chain(images);
    let mut index = 0;
    loop {
        while begun.len() < 2 * args.texts.batch as usize
            && let Some(item) = items.next()
        {
            let (encoded, id) = match item {
                Item::Text(text) => {
                    let mut encoded = encode(&model, args, &text.text)?;
                    encoded.tokens = texts::fit(&model, encoded.tokens, args.truncate)?;
                    (encoded, &text.id)
                }
                Item::Image(path) => {
                    let encoded = model.encode_image_to_embed(images::read(path)?);
                    (encoded.context("--image")?, &None)
                }
            };
            let count = encoded.tokens.len();
            let vector = match args.sparse {
                true => Begun::Sparse(shape.apply_beside(engine.embed_sparse(encoded, None)?)),
                false => Begun::Dense(shape.apply(engine.embed(encoded, None)?)),
            };
            begun.push_back((vector, count, id));
        }
        let Some((vector, tokens, id)) = begun.pop_front() else {
            break;
        };
        let mut line = match vector {
            Begun::Dense(vector) => {
                json!({ "index": index, "embedding": vector.wait()?, "tokens": tokens })
            }
            Begun::Sparse(vector) => {
                let vector = vector.wait()?;
                let weight = |(token, weight)| json!({ "index": token, "value": weight });
                let sparse: Vec<_> = vector.weights.into_iter().map(weight).collect();
                let mut line = json!({ "index": index, "sparse": sparse, "tokens": tokens });
                if !vector.dense.is_empty() {
                    line["embedding"] = json!(vector.dense);
                }
                line
            }
        };
        if let Some(id) = id {
            line["id"] = id.clone();
        }
        writeln!(out, "{line}")?;
        index += 1;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

enum Item<'a> {
    Text(&'a Text),
    Image(&'a Path),
}

enum Begun {
    Dense(Embedding),
    Sparse(SparseEmbedding),
}

/// What is done to every vector.
struct Shape {
    dimensions: usize,
    normalise: bool,
}

impl Shape {
    fn of(model: &Model, args: &EmbedArgs) -> anyhow::Result<Shape> {
        let (size, origin) = (model.embedding_size(), model.origin());
        if size.is_none() && model.has_sparse_vectors() {
            anyhow::ensure!(
                args.sparse,
                "{origin}: its vectors are sparse; use --sparse"
            );
            let none = args.dimensions.is_none();
            anyhow::ensure!(none, "--dimensions: sparse vectors have none");
            return Ok(Shape {
                dimensions: 0,
                normalise: false,
            });
        }
        let size = size.with_context(|| {
            format!("{origin}: this model scores pairs of texts; use `welte rerank`")
        })?;
        let dimensions = args.dimensions.unwrap_or(size);
        anyhow::ensure!(
            (1..=size).contains(&dimensions),
            "--dimensions {dimensions}: must be from 1 to {size}"
        );
        Ok(Shape {
            dimensions,
            normalise: match (args.normalise, args.no_normalise) {
                (false, false) => model.vector_settings().normalise,
                (normalise, _) => normalise,
            },
        })
    }

    fn apply(&self, embedding: Embedding) -> Embedding {
        let embedding = embedding.shortened(self.dimensions);
        if self.normalise {
            embedding
        } else {
            embedding.unnormalised()
        }
    }

    fn apply_beside(&self, embedding: SparseEmbedding) -> SparseEmbedding {
        let embedding = embedding.shortened(self.dimensions);
        if self.normalise {
            embedding
        } else {
            embedding.unnormalised()
        }
    }
}

/// The tokens of a text after its prefix or prompt.
fn encode(model: &Model, args: &EmbedArgs, text: &str) -> anyhow::Result<TextToEmbed> {
    if let Some(prefix) = &args.prefix {
        return Ok(model.encode(&format!("{prefix}{text}"))?.into());
    }
    let encoded = model.encode_to_embed(args.prompt_name.as_deref(), text);
    encoded.map_err(|error| match error {
        Error::NoSuchPrompt { .. } => {
            anyhow::anyhow!("--prompt-name: {error}; or use --prefix TEXT")
        }
        error => error.into(),
    })
}
