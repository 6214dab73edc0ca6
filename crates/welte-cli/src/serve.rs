//! `welte serve`: the memory plan, the address and the log go to standard error.

use crate::args::ServeArgs;
use crate::{catalog, figures, floor, offer, source};
use anyhow::Context;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;
use welte::{Activations, Images, Model, Speech, SpeechOptions};
use welte_report::{count, human};
#[cfg(feature = "hub")]
use welte_server::HubAccess;
use welte_server::{BrowserPage, McpServers, ServerOptions, SpeechService};
use welte_table::Class;

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let level = if args.verbose {
        tracing_subscriber::filter::LevelFilter::INFO
    } else {
        tracing_subscriber::filter::LevelFilter::WARN
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_max_level(level)
        .init();
    let mut options = options(args)?;
    options.speech = speech(args)?;
    let mut load = args.place.options()?;
    load.slots = args.parallel;
    load.fit_context = true;
    load.fit_within = args.models_memory;
    anyhow::ensure!(
        !args.lora_updates || load.max_adapters > 0 || !load.adapters.is_empty(),
        "--lora-updates: there is room for no adapter; add --max-adapters N"
    );
    args.spec.set_load(&mut load)?;
    load.fit_with_others = args.spec.has_draft_model(&load) || catalog::has_several(args);
    (load.embeddings, load.scores) = (!args.reranking, args.reranking);
    load.pooling = args.offer.pooling;
    load.cache_positions = args.cache_positions;
    load.checkpoints = args.checkpoints;
    load.prefix_store = args.prefix.prefix_cache.is_some();
    args.eyes.set(&mut load);
    let (catalog, first) = catalog::of(args, &load)?;
    if let Some(model) = &first {
        print_first(model, args.verbose);
    }
    let planned = catalog.plan();
    anyhow::ensure!(
        planned.len() == 1 || args.spec.model_draft.is_none(),
        "-md takes one model; {} are served",
        planned.len()
    );
    anyhow::ensure!(
        planned.len() == 1 || args.eyes.mmproj.is_none(),
        "--mmproj takes one model; {} are served. Put each encoder beside its model",
        planned.len()
    );
    anyhow::ensure!(
        planned.len() == 1 || load.adapters.is_empty(),
        "--lora takes one model; {} are served",
        planned.len()
    );
    load.context = first.as_ref().map_or(load.context, |m| m.context() as u32);
    args.spec
        .set(&mut options.engine, first.as_ref(), |draft| {
            let mut of_draft = load.clone();
            of_draft.draft_layer = false;
            of_draft.activations = Activations::Wide;
            of_draft.images = Images::Off;
            (of_draft.adapters, of_draft.max_adapters) = (Vec::new(), 0);
            of_draft.control_vectors = Vec::new();
            source::load_with(draft, &of_draft)
        })?;
    if planned.len() > 1 {
        catalog::print_plan(&planned, args.models_memory, args.verbose);
    }
    drop(first);
    args.limits.fit(&mut options);
    options.bandwidth = Some(|device| floor::known(device.id, &device.name));
    let address = if args.host.contains(':') {
        format!("[{}]:{}", args.host.trim_matches(['[', ']']), args.port)
    } else {
        format!("{}:{}", args.host, args.port)
    };
    let served = welte_server::serve(catalog, options, &address, |server| {
        let at = server
            .address()
            .map_or(address.clone(), |at| at.to_string());
        let names = server.model_names();
        eprintln!(
            "{} for {} at a time",
            names.join(", "),
            count(args.parallel.into(), "request"),
        );
        eprintln!("listening at http://{at}");
        if args.end_with_input {
            let handle = server.shutdown_handle();
            std::thread::spawn(move || {
                // An error is an end, too.
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                handle.shutdown();
            });
        }
    });
    served.with_context(|| format!("cannot serve at {address}"))?;
    Ok(ExitCode::SUCCESS)
}

/// The memory plan of the model that is loaded at the start.
fn print_first(model: &Model, verbose: bool) {
    figures::note_device(model, verbose);
    match model.no_images() {
        None => eprintln!("note: the model takes images"),
        Some(why) if verbose => eprintln!("note: the model takes no images: {why}"),
        Some(_) => {}
    }
    match model.no_sounds() {
        None => eprintln!("note: the model takes sounds"),
        Some(why) if verbose => eprintln!("note: the model takes no sounds: {why}"),
        Some(_) => {}
    }
    let plan = model.plan();
    for class in Class::ALL {
        eprintln!("{:>12}  {}", human(plan.bytes(class)), class.name());
    }
    eprintln!(
        "{:>12}  in all on {}, with a context of {} for each request",
        human(plan.total()),
        model.device().id,
        count(model.context() as u64, "token"),
    );
    let Some(fitted) = model.fitted_context() else {
        return;
    };
    eprintln!("{:>12}  {fitted}", "");
    if fitted.limited {
        eprintln!(
            "{:>12}  -ctk q8_0 makes room for nearly twice as many; -c and --cache-positions set other sizes",
            ""
        );
    }
}

/// The model of speech.
fn speech(args: &ServeArgs) -> anyhow::Result<Option<SpeechService>> {
    let Some(path) = &args.speech else {
        return Ok(None);
    };
    let mut place = SpeechOptions::default();
    place.device = args.place.on.device;
    place.threads = args.place.threads.map(usize::from);
    place.cpus = args.place.on.cpus.as_ref().map(|cpus| cpus.0.clone());
    place.windows = args.speech_batch;
    let model = Speech::open(path, &place)?;
    let name = welte_server::name_of(path);
    eprintln!("note: {name} writes down speech on {}", model.device());
    Ok(Some(SpeechService {
        name,
        model: model.into(),
    }))
}

fn options(args: &ServeArgs) -> anyhow::Result<ServerOptions> {
    let mut keys = args.api_key.clone();
    if let Some(path) = &args.api_key_file {
        let text = source::read_text(path)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        keys.extend(lines.map(str::to_string));
        anyhow::ensure!(!keys.is_empty(), "{}: has no keys", path.display());
    }
    let mut options = ServerOptions::default();
    options.drop_changing = args.drop_changing.clone();
    options.keep_alive = args.keep_alive.0;
    options.models_memory = args.models_memory;
    offer::set(
        &args.offer,
        args.chat_template_file.as_deref(),
        &mut options,
    )?;
    options.verbose = args.verbose;
    options.api_keys = keys;
    options.origins = args.cors.clone();
    options.hosts = args.allow_host.clone();
    options.timeout = (args.timeout > 0).then(|| Duration::from_secs(args.timeout));
    options.defaults = args.sampling.options();
    args.limits.set(&mut options)?;
    options.seed = args.sampling.fixed_seed();
    (options.metrics, options.strict) = (args.metrics, args.strict);
    options.lora_updates = args.lora_updates;
    let browser = args.browser.as_deref();
    options.browser = browser.map(BrowserPage::read).transpose()?;
    if let Some(path) = &args.mcp_config {
        let servers = McpServers::parse(&source::read_text(path)?);
        let shown = path.display();
        options.mcp = Some(servers.map_err(|problem| anyhow::anyhow!("{shown}: {problem}"))?);
    }
    options.kv_events = args.fleet.events()?;
    #[cfg(feature = "hub")]
    if args.models_cached {
        let mut settings = welte_hub::Settings::from_env()?;
        settings.encoders = args.eyes.wants_encoder();
        let access = HubAccess::from(welte_hub::Hub::new(settings));
        options.hub = Some(access.with_short_names(crate::short::on_hub));
    }
    options.engine.queue = args.queue as usize;
    options.engine.prefix_store = args.prefix.options();
    options.engine.prefix_host_bytes = args.prefix.cache_host;
    Ok(options)
}
