//! Running streams and a newcomer with a long prompt: how much the streams notice, and how long the newcomer waits for its
//! first token: new, cached, and from disk after a restart if a directory is given. Prints JSON.
//!
//! ```console
//! $ cargo run --release -p welte --example newcomer -- MODEL [DEVICE] [STREAMS] [PROMPT] [TOKENS] [DIRECTORY]
//! ```

use std::time::{Duration, Instant};
use welte::{
    Engine, EngineOptions, Error, LoadOptions, Model, PrefixStoreOptions, Request, Speculation,
    Stream,
};

/// Prompt of each running stream.
const SHORT: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let source = words.next().unwrap_or("synthetic:tiny:q8_0".into());
    let device = words.next().unwrap_or("auto".into()).parse()?;
    let mut number = |default: usize| words.next().map_or(Ok(default), |word| word.parse());
    let (streams, prompt, tokens) = (number(16)?, number(16384)?, number(256)?);
    let mut how = EngineOptions::default();
    // Random weights repeat themselves.
    how.speculation = Speculation::Off;
    how.prefix_store = words.next().map(|folder| PrefixStoreOptions {
        dir: folder.into(),
        bytes: 64 << 30,
    });
    let mut options = LoadOptions::default();
    options.device = device;
    options.slots = streams as u32 + 1;
    options.context = (prompt.max(SHORT + tokens) + 64) as u32;
    options.cache_positions = (prompt + 64 + (streams + 1) * (SHORT + tokens + 64)) as u32;
    options.prefix_store = how.prefix_store.is_some();
    let model = Model::load(&source, &options, &mut |_| ())?;
    let bench = Bench {
        engine: Engine::new(&model, &how)?,
        vocab: model.vocab(),
        streams,
        tokens,
    };
    // Warm-up.
    bench.run(None)?;
    let quiet = bench.run(None)?;
    let newcomer = request(prompt, 1, 16, bench.vocab);
    let disturbed = bench.run(Some(newcomer.clone()))?;
    let again = bench.run(Some(newcomer))?;
    let alone = request(prompt, 2, 1, bench.vocab);
    let first = first_token(&bench.engine, alone.clone())?;
    let second = first_token(&bench.engine, alone.clone())?;
    let restarted = match how.prefix_store {
        Some(_) => {
            bench.engine.shutdown();
            Some(ms(first_token(&Engine::new(&model, &how)?, alone)?))
        }
        None => None,
    };
    println!(
        "{:#}",
        serde_json::json!({
            "model": source, "device": model.device().name, "streams": streams, "prompt": prompt, "tokens": tokens,
            "latency_ms": {
                "undisturbed": quiet.latency(), "with_newcomer": disturbed.latency(), "with_cached_newcomer": again.latency(),
            },
            "newcomer_first_token_ms": {"first": ms(disturbed.first_token), "cached": ms(again.first_token)},
            "alone_first_token_ms": {"first": ms(first), "cached": ms(second), "restarted": restarted},
            "p99_over_undisturbed_p50": disturbed.percentile(99) / quiet.percentile(50),
        })
    );
    Ok(())
}

struct Bench {
    engine: Engine,
    vocab: u32,
    streams: usize,
    tokens: usize,
}

/// Times between tokens in milliseconds, ascending, and the newcomer's time to its first token.
struct Times {
    gaps: Vec<f64>,
    first_token: Duration,
}

impl Times {
    fn percentile(&self, percent: usize) -> f64 {
        let last = self.gaps.len().saturating_sub(1);
        self.gaps.get(last * percent / 100).copied().unwrap_or(0.0)
    }

    fn latency(&self) -> serde_json::Value {
        serde_json::json!({"p50": self.percentile(50), "p99": self.percentile(99), "max": self.percentile(100)})
    }
}

impl Bench {
    /// Starts the streams, then the newcomer once all of them decode, and reads everything to the end.
    fn run(&self, newcomer: Option<Request>) -> Result<Times, Error> {
        let running: Result<Vec<Stream>, Error> = (0..self.streams)
            .map(|n| {
                let seed = 100 + n as u64;
                self.engine
                    .submit(request(SHORT, seed, self.tokens, self.vocab))
            })
            .collect();
        let mut running = running?;
        for stream in &mut running {
            stream.next_token().transpose()?;
        }
        std::thread::scope(|scope| {
            let readers: Vec<_> = running
                .into_iter()
                .map(|stream| scope.spawn(move || gaps(stream)))
                .collect();
            let first_token = match newcomer {
                Some(request) => first_token(&self.engine, request)?,
                None => Duration::ZERO,
            };
            let mut all = Vec::new();
            for reader in readers {
                if let Ok(gaps) = reader.join() {
                    all.extend(gaps?);
                }
            }
            all.sort_by(f64::total_cmp);
            Ok(Times {
                gaps: all,
                first_token,
            })
        })
    }
}

/// Milliseconds between the tokens of a stream.
fn gaps(mut stream: Stream) -> Result<Vec<f64>, Error> {
    let (mut gaps, mut before) = (Vec::new(), Instant::now());
    while let Some(token) = stream.next_token() {
        token?;
        gaps.push(ms(before.elapsed()));
        before = Instant::now();
    }
    Ok(gaps)
}

fn first_token(engine: &Engine, request: Request) -> Result<Duration, Error> {
    let start = Instant::now();
    let mut stream = engine.submit(request)?;
    stream.next_token().transpose()?;
    let took = start.elapsed();
    while let Some(token) = stream.next_token() {
        token?;
    }
    Ok(took)
}

/// A prompt of various tokens.
fn request(length: usize, seed: u64, tokens: usize, vocab: u32) -> Request {
    let token =
        |i: u64| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 7) as u32 % vocab;
    let mut request = Request::new((0..length as u64).map(token).collect());
    request.options.max_tokens = tokens;
    request.options.ignore_end = true;
    request
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
