//! Flags for a server among others, before which a router stands.

use clap::Args;
use welte_server::KvEvents;

/// What routers are told.
#[derive(Args)]
pub(crate) struct FleetArgs {
    /// Tell routers which prompts are cached, by vLLM's events over ZeroMQ: tcp://*:PORT waits for subscribers, tcp://HOST:PORT
    /// connects to one
    #[arg(long, value_name = "ENDPOINT")]
    pub(crate) kv_events: Option<String>,
    /// Where routers can ask for events that they have missed, such as tcp://*:5558
    #[arg(long, value_name = "ENDPOINT", requires = "kv_events")]
    pub(crate) kv_events_replay: Option<String>,
    /// Topic of the events [default: kv@HOST@{model}, with HOST from POD_IP, POD_NAME or HOSTNAME]
    #[arg(long, value_name = "TEXT", requires = "kv_events")]
    pub(crate) kv_events_topic: Option<String>,
    /// What the hashes of blocks begin with: PYTHONHASHSEED of vLLM's servers beside this one
    #[arg(long, value_name = "TEXT", default_value = "0", requires = "kv_events")]
    pub(crate) kv_events_seed: String,
}

impl FleetArgs {
    pub(crate) fn events(&self) -> anyhow::Result<Option<KvEvents>> {
        let Some(endpoint) = &self.kv_events else {
            return Ok(None);
        };
        let replay = self.kv_events_replay.as_deref();
        let topic = self.kv_events_topic.clone().unwrap_or_else(|| {
            let names = ["POD_IP", "POD_NAME", "HOSTNAME"].iter();
            let host = names.filter_map(|name| std::env::var(name).ok());
            let host = host.into_iter().find(|host| !host.is_empty());
            format!("kv@{}@{{model}}", host.as_deref().unwrap_or("localhost"))
        });
        let events = KvEvents::new(endpoint, replay, &topic, &self.kv_events_seed);
        events
            .map(Some)
            .map_err(|problem| anyhow::anyhow!("--kv-events: {problem}"))
    }
}
