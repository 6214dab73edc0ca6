//! Flags of llama.cpp's programs, in one table: what becomes of each of them here. Flags with the same name and meaning are not in it.

use std::collections::BTreeSet;
use std::ffi::OsString;

/// What a flag of llama.cpp becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    /// This flag of ours.
    Flag(&'static str),
    /// These words of ours.
    Words(&'static [&'static str]),
    /// Nothing: it is always so.
    Given,
    /// Nothing, and a note says why.
    Note(&'static str),
    /// An error that says what to do: without it the answers would be others.
    Error(&'static str),
    /// `--device cpu`, if no layer may be on a GPU.
    Layers,
    /// The rows of a prompt that are computed at a time.
    Rows,
    /// The same, if it is fewer.
    Batch,
    /// A file of `--hf-repo`.
    HubFile,
}

/// Values that follow a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Values {
    None,
    One,
    /// `on`, `off` or `auto`, which may be left out.
    Switch,
}

struct Flag {
    names: &'static [&'static str],
    values: Values,
    becomes: Becomes,
}

const fn flag(names: &'static [&'static str], values: Values, becomes: Becomes) -> Flag {
    Flag {
        names,
        values,
        becomes,
    }
}

use Becomes::{Batch, Error, Given, HubFile, Layers, Note, Rows, Words};
use Values::{None as Zero, One, Switch};

const fn to(ours: &'static str) -> Becomes {
    Becomes::Flag(ours)
}

const VIDEO: Becomes = Error("a video is a file of --image");
const NO_DOWNLOAD: Becomes =
    Error("an encoder is not downloaded by its address; name its file with --mmproj");
const ROPE: Becomes =
    Error("positions are scaled as the model's file says, and cannot be changed; leave it out");
const ESCAPES: Becomes = Note("backslashes in a prompt stay as they are");
const LOG: Becomes = Note("there is one log, on standard error; -v says more");
const PLACEMENT: Becomes = Note("whole models are placed; see --device and --cpu-experts");
const DRAFT: Becomes = Note("the draft model has the settings of the model");
const SPECULATION: Becomes = Note("when to guess is measured; see --spec and --draft-max");
const THREADS: Becomes = Note("-t and --cpus count for prompts and for answers");
const CACHE: Becomes = Note(
    "all requests share one prefix cache; see --cache-positions, --cache-host and --prefix-cache",
);
const TLS: Becomes = Error("there is no TLS; put a proxy in front of the server");
const OWN_TOOLS: Becomes =
    Error("the server runs no tools; the client runs those that the model calls");

const FLAGS: &[Flag] = &[
    // Short names.
    flag(&["-sys"], One, to("--system-prompt")),
    flag(&["-hf", "-hfr"], One, to("--hf-repo")),
    flag(&["-np"], One, to("--parallel")),
    flag(&["-md", "--spec-draft-model"], One, to("--model-draft")),
    flag(&["-ctk"], One, to("--cache-type-k")),
    flag(&["-ctv"], One, to("--cache-type-v")),
    flag(&["-jf"], One, to("--json-schema-file")),
    flag(&["-a"], One, to("--alias")),
    flag(&["-to"], One, to("--timeout")),
    flag(&["-rea"], One, to("--reasoning")),
    flag(&["-dev"], One, to("--device")),
    flag(&["-ncmoe"], One, to("--cpu-experts")),
    // Other names.
    flag(&["--temperature"], One, to("--temp")),
    flag(&["--n-predict"], One, to("--predict")),
    flag(&["--reverse-prompt"], One, to("--stop")),
    flag(
        &["-no-cnv", "--no-conversation", "-nocnv"],
        Zero,
        to("--no-chat"),
    ),
    flag(&["-Cr", "--cpu-range"], One, to("--cpus")),
    flag(&["--cors-origins"], One, to("--cors")),
    flag(&["--sleep-idle-seconds"], One, to("--keep-alive")),
    flag(
        &["--spec-draft-n-max", "--draft", "--draft-n"],
        One,
        to("--draft-max"),
    ),
    flag(&["--no-ui", "--no-webui"], Zero, to("--no-page")),
    flag(&["-ctxcp", "--ctx-checkpoints"], One, to("--checkpoints")),
    flag(&["--swa-checkpoints"], One, to("--checkpoints")),
    flag(&["-ngl", "--gpu-layers", "--n-gpu-layers"], One, Layers),
    flag(&["-ub", "--ubatch-size"], One, Rows),
    flag(&["-b", "--batch-size"], One, Batch),
    flag(&["-hff", "--hf-file"], One, HubFile),
    // What is always so.
    flag(&["-cnv", "--conversation"], Zero, Given),
    flag(&["-st", "--single-turn"], Zero, Given),
    flag(&["-i", "--interactive"], Zero, Given),
    flag(&["-if", "--interactive-first"], Zero, Given),
    flag(&["-mli", "--multiline-input"], Zero, Given),
    flag(&["--jinja", "--no-display-prompt"], Zero, Given),
    flag(&["-fa", "--flash-attn"], Switch, Given),
    flag(&["-cb", "--cont-batching"], Zero, Given),
    flag(&["--embedding", "--embeddings"], Zero, Given),
    flag(&["--slots", "--props", "--ui", "--webui"], Zero, Given),
    flag(&["--cache-prompt", "--mmap", "--offline"], Zero, Given),
    flag(&["--no-context-shift", "--prefill-assistant"], Zero, Given),
    flag(&["--kv-offload", "-kvo", "--op-offload"], Zero, Given),
    flag(&["--repack", "--perf", "--show-timings"], Zero, Given),
    flag(&["--no-escape", "--warmup", "--simple-io"], Zero, Given),
    flag(&["--models-autoload"], Zero, Given),
    // What means nothing here.
    flag(
        &["--no-jinja"],
        Zero,
        Note("chat templates are always those of the model or of --chat-template"),
    ),
    flag(
        &["-nocb", "--no-cont-batching"],
        Zero,
        Note("requests always share steps"),
    ),
    flag(
        &["-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"],
        Zero,
        Note("all requests share one cache; see --cache-positions"),
    ),
    flag(&["--swa-full"], Zero, CACHE),
    flag(
        &["--cache-idle-slots", "--no-cache-idle-slots"],
        Zero,
        CACHE,
    ),
    flag(&["-cram", "--cache-ram"], One, CACHE),
    flag(&["--cache-reuse"], One, CACHE),
    flag(&["-cms", "--checkpoint-min-step"], One, CACHE),
    flag(&["-sps", "--slot-prompt-similarity"], One, CACHE),
    flag(&["-dt", "--defrag-thold"], One, CACHE),
    flag(
        &["--no-cache-prompt"],
        Zero,
        Note("a request decides it, with cache_prompt"),
    ),
    flag(
        &["--prompt-cache"],
        One,
        Note("--prefix-cache names a folder that keeps computed prompts"),
    ),
    flag(
        &["--prompt-cache-all", "--prompt-cache-ro"],
        Zero,
        Note("--prefix-cache names a folder that keeps computed prompts"),
    ),
    flag(
        &["--context-shift"],
        Zero,
        Note("a full context ends the answer"),
    ),
    flag(&["--keep"], One, Note("a prompt is never cut")),
    flag(&["-tb", "--threads-batch"], One, THREADS),
    flag(&["-C", "--cpu-mask"], One, THREADS),
    flag(&["-Cb", "--cpu-mask-batch"], One, THREADS),
    flag(&["-Crb", "--cpu-range-batch"], One, THREADS),
    flag(&["--cpu-strict", "--cpu-strict-batch"], One, THREADS),
    flag(&["--prio", "--prio-batch", "--poll"], One, THREADS),
    flag(&["--poll-batch", "--threads-http"], One, THREADS),
    flag(&["--numa"], One, Note("memory nodes are found and used")),
    flag(
        &["--mlock", "--no-mmap", "--no-host"],
        Zero,
        Note("weights are read where the device wants them"),
    ),
    flag(
        &["-lm", "--load-mode", "-lzm", "--lazy-mode"],
        One,
        Note("weights are read where the device wants them"),
    ),
    flag(&["--check-tensors"], Zero, Note("files are checked always")),
    flag(
        &["--no-warmup", "-nr", "--no-repack"],
        Zero,
        Note("a model is loaded in the form that the device wants"),
    ),
    flag(
        &["-nkvo", "--no-kv-offload", "--no-op-offload"],
        Zero,
        PLACEMENT,
    ),
    flag(
        &["-cmoe", "--cpu-moe"],
        Zero,
        Words(&["--cpu-experts", "all"]),
    ),
    flag(&["-ncffn", "--n-cpu-ffn"], One, PLACEMENT),
    flag(&["-sm", "--split-mode"], One, PLACEMENT),
    flag(&["-ts", "--tensor-split"], One, PLACEMENT),
    flag(&["-mg", "--main-gpu"], One, PLACEMENT),
    flag(&["-ot", "--override-tensor"], One, PLACEMENT),
    flag(
        &["-fit", "--fit"],
        Switch,
        Note("the memory plan is checked always"),
    ),
    flag(&["-e", "--escape"], Zero, ESCAPES),
    flag(&["-co", "--color"], Switch, Note("answers have no colours")),
    flag(
        &["--display-prompt", "--verbose-prompt", "-sp", "--special"],
        Zero,
        Note("the answer alone is printed"),
    ),
    flag(
        &["--no-perf", "--no-show-timings"],
        Zero,
        Note("figures go to standard error"),
    ),
    flag(&["--log-disable", "--log-prefix"], Zero, LOG),
    flag(&["--no-log-prefix", "--log-timestamps"], Zero, LOG),
    flag(&["--no-log-timestamps", "--log-jsonl"], Zero, LOG),
    flag(&["--log-file", "--log-colors"], One, LOG),
    flag(&["-lv", "--verbosity", "--log-verbosity"], One, LOG),
    flag(
        &["-bs", "--backend-sampling"],
        Zero,
        Note("tokens are chosen on the device where it can"),
    ),
    flag(
        &["--samplers", "--sampler-seq", "--sampling-seq"],
        One,
        Note("the order of sampling is fixed; a request may leave steps out"),
    ),
    flag(
        &["--reasoning-format"],
        One,
        Note("reasoning is a field of its own in the APIs that have one"),
    ),
    flag(&["--reuse-port"], Zero, Note("one server has the port")),
    flag(
        &["--models-max"],
        One,
        Note("--models-memory limits the models that are loaded"),
    ),
    flag(
        &["--no-models-autoload"],
        Zero,
        Note("a model is loaded at its first request"),
    ),
    flag(&["--spec-type"], One, SPECULATION),
    flag(
        &["--spec-draft-n-min", "--draft-min", "--draft-n-min"],
        One,
        SPECULATION,
    ),
    flag(&["--spec-draft-p-min", "--draft-p-min"], One, SPECULATION),
    flag(
        &["--spec-draft-p-split", "--draft-p-split"],
        One,
        SPECULATION,
    ),
    flag(&["-td", "--threads-draft", "-tbd"], One, DRAFT),
    flag(
        &["-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"],
        One,
        DRAFT,
    ),
    flag(&["-cd", "--ctx-size-draft"], One, DRAFT),
    flag(&["-devd", "--device-draft"], One, DRAFT),
    // What would change the answers.
    flag(&["--lora-scaled"], One, Becomes::Flag("--lora")),
    flag(&["-mm"], One, Becomes::Flag("--mmproj")),
    flag(&["-mmu", "--mmproj-url"], One, NO_DOWNLOAD),
    flag(&["--video"], One, VIDEO),
    flag(&["--no-mmproj-auto"], Zero, Becomes::Flag("--no-mmproj")),
    flag(&["--mmproj-auto"], Zero, Given),
    flag(&["--rope-scaling", "--rope-scale"], One, ROPE),
    flag(&["--rope-freq-base", "--rope-freq-scale"], One, ROPE),
    flag(&["--yarn-orig-ctx", "--yarn-ext-factor"], One, ROPE),
    flag(&["--yarn-attn-factor", "--yarn-beta-slow"], One, ROPE),
    flag(&["--yarn-beta-fast"], One, ROPE),
    flag(&["-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"], One, ROPE),
    flag(
        &["--override-kv"],
        One,
        Error("a model's metadata cannot be changed; leave it out"),
    ),
    flag(
        &["--mirostat", "--mirostat-lr", "--mirostat-ent"],
        One,
        Error("mirostat is not supported; use --min-p or --top-p"),
    ),
    flag(
        &["--adaptive-target", "--adaptive-decay"],
        One,
        Error("adaptive sampling is not supported; use --min-p or --top-p"),
    ),
    flag(
        &["-l", "--logit-bias"],
        One,
        Error("a bias is a field of requests to the server, logit_bias"),
    ),
    flag(
        &["-mu", "--model-url"],
        One,
        Error("download the file and name it with -m, or name a model on the hub with -hf"),
    ),
    flag(
        &["-hft", "--hf-token"],
        One,
        Error("set the environment variable HF_TOKEN"),
    ),
    flag(
        &["-sysf", "--system-prompt-file"],
        One,
        Error("use -sys \"$(cat FILE)\""),
    ),
    flag(
        &["-bf", "--binary-file"],
        One,
        Error("-f reads a prompt from a file of text"),
    ),
    flag(
        &["--in-prefix", "--in-suffix"],
        One,
        Error("a chat template says what is around a message; see --chat-template-file"),
    ),
    flag(&["--ssl-key-file", "--ssl-cert-file"], One, TLS),
    flag(&["--tools", "--mcp-servers-config"], One, OWN_TOOLS),
    flag(&["--mcp-servers-json", "--tools-runtime"], One, OWN_TOOLS),
    flag(
        &["--slot-save-path"],
        One,
        Error("--prefix-cache names a folder that keeps computed prompts"),
    ),
    flag(
        &["--api-prefix"],
        One,
        Error("paths have no prefix; a proxy can add one"),
    ),
    flag(&["--path"], One, Error("the server has its own page only")),
    flag(
        &["--models-preset"],
        One,
        Error("models have one set of flags; name them with -m or --models-dir"),
    ),
    flag(&["--list-devices"], Zero, Error("use welte doctor")),
    flag(&["-cl", "--cache-list"], Zero, Error("use welte list")),
];

/// The rows of a step unless a flag says more, as llama.cpp has them.
const ROWS: u32 = 512;

/// A command line in our flags, and what to say about it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Translated {
    pub(crate) args: Vec<OsString>,
    pub(crate) notes: Vec<String>,
    /// Why the command cannot be run.
    pub(crate) error: Option<String>,
}

/// Replaces llama.cpp's flags. Other commands than these take short names only.
pub(crate) fn translate(args: impl IntoIterator<Item = OsString>) -> Translated {
    let mut args = args.into_iter().peekable();
    let mut done = Translated::default();
    done.args.extend(args.next());
    let mut all = false;
    let (mut rows, mut batch, mut hub_file) = (None, None, None);
    let mut first = true;
    let mut noted = BTreeSet::new();
    while let Some(arg) = args.next() {
        if arg == "--" {
            done.args.push(arg);
            done.args.extend(args.by_ref());
            break;
        }
        let text = arg.to_str().unwrap_or_default();
        if first {
            all = matches!(text, "run" | "chat" | "serve");
            first = false;
        }
        let (name, joined) = match text.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_string())),
            _ => (text, None),
        };
        // Underscores are dashes there.
        let plain = if name.starts_with("--") {
            name.replace('_', "-")
        } else {
            name.to_string()
        };
        let found = FLAGS
            .iter()
            .find(|flag| flag.names.contains(&plain.as_str()));
        let Some(flag) = found.filter(|flag| all || matches!(flag.becomes, Becomes::Flag(_)))
        else {
            done.args.push(arg);
            continue;
        };
        let name = name.to_string();
        if let Becomes::Flag(ours) = flag.becomes {
            done.args.push(ours.into());
            done.args.extend(joined.map(OsString::from));
            continue;
        }
        let mut value = joined;
        let count = match (flag.values, &value) {
            (Values::None, _) | (_, Some(_)) => 0,
            (One, None) => 1,
            (Switch, None) => {
                let next = args.peek().and_then(|next| next.to_str());
                usize::from(next.is_some_and(is_switch))
            }
        };
        for _ in 0..count {
            let next = args.next();
            value = next.and_then(|next| next.into_string().ok()).or(value);
        }
        let number = || value.as_deref().and_then(|value| value.parse::<i64>().ok());
        match flag.becomes {
            Becomes::Flag(_) | Given => {}
            Note(why) => {
                if noted.insert(why) {
                    done.notes.push(format!("{name} has no effect: {why}"));
                }
            }
            Error(why) => {
                done.error.get_or_insert(format!("{name}: {why}"));
            }
            Words(words) => done.args.extend(words.iter().map(OsString::from)),
            Layers => match number() {
                Some(0) => done.args.extend(["--device", "cpu"].map(OsString::from)),
                _ => done.notes.push(format!(
                    "{name} has no effect: a model is on a GPU as a whole, if there is one and it fits"
                )),
            },
            Rows | Batch => match number().and_then(|rows| u32::try_from(rows).ok()) {
                Some(n) if n > 0 && flag.becomes == Rows => rows = Some(n),
                Some(n) if n > 0 => batch = Some(n),
                _ => {
                    let problem = format!("{name}: use a number above 0");
                    done.error.get_or_insert(problem);
                }
            },
            HubFile => hub_file = value,
        }
    }
    if rows.is_some() || batch.is_some() {
        let rows = rows.unwrap_or(ROWS).min(batch.unwrap_or(u32::MAX));
        done.insert(["--rows".to_string(), rows.to_string()]);
    }
    if let Some(file) = hub_file {
        done.add_file(&file);
    }
    done
}

fn is_switch(word: &str) -> bool {
    ["on", "off", "auto", "0", "1", "true", "false"].contains(&word)
}

impl Translated {
    /// Adds flags after the command's name.
    fn insert(&mut self, flags: [String; 2]) {
        let at = self.args.len().min(2);
        self.args.splice(at..at, flags.map(OsString::from));
    }

    /// Adds a file's name to the model's name on the hub.
    fn add_file(&mut self, file: &str) {
        let at = self.args.iter().position(|arg| arg == "--hf-repo");
        match at.and_then(|at| self.args.get_mut(at + 1)) {
            Some(repo) => {
                repo.push(":");
                repo.push(file);
            }
            None => {
                let problem = "--hf-file: needs --hf-repo before it".to_string();
                self.error.get_or_insert(problem);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    fn of(line: &str) -> Translated {
        translate(line.split(' ').map(OsString::from))
    }

    fn words(line: &str) -> String {
        let done = of(line);
        assert_eq!((done.notes.len(), &done.error), (0, &None), "{line}");
        let words: Vec<&str> = done.args.iter().map(|arg| arg.to_str().unwrap()).collect();
        words.join(" ")
    }

    #[test]
    fn flags_become_ours() {
        for (theirs, ours) in [
            (
                "welte run -m a -cnv -ngl 0 --jinja -n 4",
                "welte run -m a --device cpu -n 4",
            ),
            (
                "welte serve -fa on --temperature=0.5 -np 2 --flash-attn -c 9",
                "welte serve --temp 0.5 --parallel 2 -c 9",
            ),
            ("welte run --n_gpu_layers 0", "welte run --device cpu"),
            ("welte run -fa hello", "welte run hello"),
            ("welte serve -b 2048 -m a", "welte serve --rows 512 -m a"),
            ("welte serve -b 64 -ub 32", "welte serve --rows 32"),
            ("welte serve -b 64", "welte serve --rows 64"),
            ("welte serve -ub 1024 -b 2048", "welte serve --rows 1024"),
            (
                "welte run -hf a/b -hff c.gguf",
                "welte run --hf-repo a/b:c.gguf",
            ),
            ("welte run -m a -- -fa -b", "welte run -m a -- -fa -b"),
            ("welte bench -np 4 -b 3", "welte bench --parallel 4 -b 3"),
        ] {
            assert_eq!(words(theirs), ours, "{theirs}");
        }
    }

    #[test]
    fn what_has_no_effect_is_said_once() {
        let done = of("welte serve -ngl 99 --mlock --no-mmap --cache-ram 100 -m a");
        assert_eq!(done.args.len(), 4);
        assert_eq!(done.notes.len(), 3, "{:?}", done.notes);
        assert!(done.notes[0].starts_with("-ngl has no effect"));
        assert_eq!(done.error, None);
    }

    #[test]
    fn what_would_change_answers_is_refused() {
        for (line, word) in [
            ("welte serve --rope-scale 2", "scaled"),
            ("welte run -b x", "above 0"),
            ("welte run --hf-file x", "--hf-repo"),
        ] {
            let error = of(line).error.expect(line);
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn no_flag_hides_one_of_ours() {
        let ours = Cli::command();
        let serve = ["run", "serve"].map(|name| ours.find_subcommand(name).unwrap());
        let mut seen = BTreeSet::new();
        for flag in FLAGS {
            for name in flag.names {
                assert!(seen.insert(*name), "{name} is there twice");
                let known = |command: &&clap::Command| {
                    command.get_arguments().any(|arg| {
                        let long = arg.get_long().map(|long| format!("--{long}"));
                        let short = arg.get_short().map(|short| format!("-{short}"));
                        [long, short].contains(&Some(name.to_string()))
                    })
                };
                assert!(!serve.iter().any(known), "{name} is ours");
            }
            if let Becomes::Flag(ours) = flag.becomes {
                let has = |command: &&clap::Command| {
                    command.get_arguments().any(|arg| {
                        arg.get_long()
                            .is_some_and(|long| ours == format!("--{long}"))
                    })
                };
                assert!(serve.iter().any(has), "{ours}");
            }
        }
    }
}
