//! `welte launch`: a coding agent or another program, connected to a server.

use crate::address::AddressArgs;
use crate::{http, own};
use anyhow::{Context, bail};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use welte_formats::files;

/// Agents describe their tools at length.
const CONTEXT: u32 = 32768;

#[derive(clap::Args)]
pub(crate) struct LaunchArgs {
    /// The program
    #[arg(value_enum)]
    tool: Tool,
    /// A model's name on a running server, or a model to serve, as for `welte serve -m`
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,
    /// Context size of a server that this command starts
    #[arg(short = 'c', long, default_value_t = CONTEXT, value_name = "N")]
    ctx_size: u32,
    #[command(flatten)]
    server: AddressArgs,
    /// Print the variables and the command, and start nothing
    #[arg(long)]
    print: bool,
    /// Arguments of the program, after --
    #[arg(last = true, value_name = "ARGUMENT")]
    rest: Vec<String>,
}

/// Programs that can be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tool {
    /// Claude Code
    Claude,
    /// Codex CLI
    Codex,
    /// OpenCode
    Opencode,
    /// Aider
    Aider,
    /// Goose
    Goose,
    /// Open WebUI
    OpenWebui,
}

/// How a program is started.
struct Start {
    program: &'static str,
    args: Vec<String>,
    variables: Vec<(&'static str, String)>,
    /// Files of its configuration, in a folder of their own.
    files: Vec<(&'static str, String)>,
}

/// What a program is told about the server.
struct Served<'a> {
    url: &'a str,
    model: &'a str,
    key: &'a str,
    folder: &'a Path,
}

impl Tool {
    fn start(self, served: &Served) -> Start {
        let Served {
            url,
            model,
            key,
            folder,
        } = *served;
        let v1 = format!("{url}/v1");
        let at = |file: &str| folder.join(file).display().to_string();
        let set = |pairs: &[(&'static str, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| (*name, value.to_string()));
            pairs.collect::<Vec<_>>()
        };
        let plain = |program, variables| Start {
            program,
            args: Vec::new(),
            variables,
            files: Vec::new(),
        };
        match self {
            Tool::Claude => plain(
                "claude",
                set(&[
                    ("ANTHROPIC_BASE_URL", url),
                    ("ANTHROPIC_AUTH_TOKEN", key),
                    ("ANTHROPIC_MODEL", model),
                    ("ANTHROPIC_SMALL_FAST_MODEL", model),
                    ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
                ]),
            ),
            Tool::Codex => Start {
                // A JSON text is one of TOML as well.
                files: vec![(
                    "config.toml",
                    format!(
                        "model = {}\nmodel_provider = \"welte\"\n[model_providers.welte]\nname = \"Welte\"\nbase_url = {}\nenv_key = \"WELTE_KEY\"\nwire_api = \"responses\"\n",
                        json!(model),
                        json!(v1)
                    ),
                )],
                ..plain(
                    "codex",
                    set(&[
                        ("CODEX_HOME", &folder.display().to_string()),
                        ("WELTE_KEY", key),
                    ]),
                )
            },
            Tool::Opencode => {
                let config = json!({
                    "model": format!("welte/{model}"),
                    "provider": { "welte": {
                        "npm": "@ai-sdk/openai-compatible",
                        "name": "Welte",
                        "options": { "baseURL": v1, "apiKey": key },
                        "models": { model: { "name": model } },
                    } },
                });
                Start {
                    files: vec![("opencode.json", format!("{config:#}"))],
                    ..plain(
                        "opencode",
                        set(&[("OPENCODE_CONFIG", &at("opencode.json"))]),
                    )
                }
            }
            Tool::Aider => Start {
                args: vec!["--model".into(), format!("openai/{model}")],
                ..plain(
                    "aider",
                    set(&[("OPENAI_API_BASE", &v1), ("OPENAI_API_KEY", key)]),
                )
            },
            Tool::Goose => Start {
                args: vec!["session".into()],
                ..plain(
                    "goose",
                    set(&[
                        ("GOOSE_PROVIDER", "openai"),
                        ("GOOSE_MODEL", model),
                        ("OPENAI_HOST", url),
                        ("OPENAI_API_KEY", key),
                    ]),
                )
            },
            Tool::OpenWebui => Start {
                // Its own default is the port of our server.
                args: ["serve", "--port", "3000"].map(String::from).into(),
                ..plain(
                    "open-webui",
                    set(&[
                        ("OPENAI_API_BASE_URL", &v1),
                        ("OPENAI_API_KEY", key),
                        ("ENABLE_OLLAMA_API", "false"),
                        // Otherwise the connections of its last start hold.
                        ("ENABLE_PERSISTENT_CONFIG", "false"),
                    ]),
                )
            },
        }
    }
}

pub(crate) fn run(args: &LaunchArgs) -> anyhow::Result<ExitCode> {
    let url = args.server.url()?;
    let folder = Folder::new()?;
    // While the program runs it decides what Ctrl-C means; we clean up after it.
    let _ = ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed));
    let running = http::ask(&args.server, "GET", "/v1/models", None);
    let (mut server, models) = match running {
        Ok(models) => (None, models),
        Err(error) if args.print || !http::is_absent(&error) => return Err(error),
        Err(_) => {
            let server = serve(args, &folder.0)?;
            let models = http::ask(&args.server, "GET", "/v1/models", None)?;
            (Some(server), models)
        }
    };
    let model = choose(&models, args.model.as_deref().filter(|_| server.is_none()))?;
    let key = args.server.api_key.as_deref().unwrap_or("welte");
    let served = Served {
        url: &url,
        model: &model,
        key,
        folder: &folder.0,
    };
    let start = args.tool.start(&served);
    if args.print {
        print(&start, &args.rest);
        return Ok(ExitCode::SUCCESS);
    }
    for (name, text) in &start.files {
        let path = folder.0.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    eprintln!("{} talks to {model} at {url}", start.program);
    let mut command = Command::new(start.program);
    for name in ELSEWHERE {
        command.env_remove(name);
    }
    command
        .args(&start.args)
        .args(&args.rest)
        .envs(start.variables);
    let status = command.status().with_context(|| {
        format!(
            "{}: cannot be started; is it installed and in PATH?",
            start.program
        )
    });
    if let Some(server) = &mut server {
        server.end();
    }
    let code = status?.code().unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Ctrl-C was pressed.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Variables by which a program would send prompts, or a key of the user, to another place.
const ELSEWHERE: [&str; 10] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_CUSTOM_HEADERS",
    "ANTHROPIC_MODEL",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "OPENAI_API_BASE_URLS",
    "OPENAI_API_KEYS",
    "OPENAI_BASE_PATH",
    "OPENAI_BASE_URL",
    "OPENAI_ORGANIZATION",
];

/// The name of the model to use.
fn choose(models: &Value, wanted: Option<&str>) -> anyhow::Result<String> {
    let ids = models["data"].as_array().into_iter().flatten();
    let ids: Vec<&str> = ids.filter_map(|model| model["id"].as_str()).collect();
    match wanted {
        None => Ok(ids.first().context("the server has no models")?.to_string()),
        Some(name) if ids.contains(&name) => Ok(name.to_string()),
        Some(name) => bail!("-m {name}: the running server has {}", ids.join(", ")),
    }
}

/// Prints what a shell takes.
fn print(start: &Start, rest: &[String]) {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    for (name, text) in &start.files {
        println!("# in a file {name} there:\n{}", text.trim_end());
    }
    println!("unset {}", ELSEWHERE.join(" "));
    for (name, value) in &start.variables {
        println!("export {name}={}", quoted(value));
    }
    let words = start.args.iter().chain(rest).map(|word| quoted(word));
    let words: Vec<String> = std::iter::once(start.program.to_string())
        .chain(words)
        .collect();
    println!("{}", words.join(" "));
}

/// A server of our own.
struct Server(Child);

impl Server {
    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a server and waits until it answers. Its log goes to a file, because the program has the terminal.
fn serve(args: &LaunchArgs, folder: &Path) -> anyhow::Result<Server> {
    let (host, port) = args.server.place()?;
    let words = own::words()?;
    let log = folder.join("server.log");
    let file = File::create(&log).with_context(|| log.display().to_string())?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command.args(["serve", "--host", &host, "--port", &port.to_string()]);
    if host.parse::<IpAddr>().is_err() {
        command.args(["--allow-host", &host]);
    }
    command.args(["-c", &args.ctx_size.to_string()]);
    // Agents put changing lines in front of a prompt that could be reused otherwise.
    command.args(["--drop-changing", "billing"]);
    if let Some(model) = &args.model {
        command.args(["-m", model]);
    }
    if let Some(key) = &args.server.api_key {
        // Every user sees the arguments of a process.
        let file = folder.join("key");
        fs::write(&file, key).with_context(|| file.display().to_string())?;
        command.arg("--api-key-file").arg(file);
    }
    // The pipe ends with this process, however that ends, and the server with the pipe.
    command.arg("--end-with-input");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(file);
    // Ctrl-C is meant for the program.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut server = Server(command.spawn().context("the server cannot be started")?);
    eprintln!("starting a server at {host}:{port}");
    loop {
        if let Some(status) = server.0.try_wait()? {
            let said = fs::read_to_string(&log).unwrap_or_default();
            bail!("the server ended ({status}):\n{}", said.trim_end());
        }
        match http::ask(&args.server, "GET", "/health", None) {
            Ok(_) => return Ok(server),
            Err(error) if http::is_refused(&error) => return Err(error),
            Err(_) => {}
        }
        if INTERRUPTED.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A temporary folder that only this user can read.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Folder> {
        let path = std::env::temp_dir().join(format!("welte-launch-{}", files::random_name()));
        let mut builder = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
            .create(&path)
            .with_context(|| path.display().to_string())?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What programs leave there is of no further use.
        let _ = fs::remove_dir_all(&self.0);
    }
}
