//! The limits of `welte serve`, which docs/server.md lists.

use crate::flags::bytes;
use clap::Args;
use std::time::Duration;
use welte_server::{ENCODING_BYTES, ServerOptions};

/// What clients may take of the server.
#[derive(Args)]
pub(crate) struct LimitArgs {
    /// Connections at a time; idle ones make room for new ones, and /health has its own
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections: u32,
    /// Connections of one address at a time; raise it behind a reverse proxy
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections_per_address: u32,
    /// Seconds that the head of a request may take, and that a connection may stay idle
    #[arg(long, default_value_t = 30, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) head_timeout: u32,
    /// Seconds that the body of a request may take
    #[arg(long, default_value_t = 60, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) body_timeout: u32,
    /// The largest body of a request, in bytes or with K or M
    #[arg(long, default_value = "32M", value_name = "SIZE", value_parser = bytes)]
    pub(crate) max_body: u64,
    /// Memory that the bodies of all requests may take together, parsed ones included [default: 1G, or an eighth of the free
    /// memory if that is less]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) bodies_memory: Option<u64>,
    /// Images and sounds that a request may have
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) max_images: u32,
    /// The largest file of an image or a sound, in bytes or with K or M
    #[arg(long, default_value = "20M", value_name = "SIZE", value_parser = bytes)]
    pub(crate) max_image: u64,
    /// Fetch images and sounds from this host when requests give their address, or from all public hosts with * (repeatable)
    #[arg(long, value_name = "HOST")]
    pub(crate) allow_remote_images: Vec<String>,
    /// Give files of videos in requests to ffmpeg; lists of frames need none
    #[arg(long)]
    pub(crate) allow_videos: bool,
    /// Seconds that answers may take after the server was asked to end
    #[arg(long, default_value_t = 30, value_name = "S", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub(crate) drain: u32,
}

impl LimitArgs {
    pub(crate) fn set(&self, options: &mut ServerOptions) -> anyhow::Result<()> {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        options.connections = self.connections as usize;
        options.connections_per_address = self.connections_per_address as usize;
        options.head_timeout = seconds(self.head_timeout);
        options.body_timeout = seconds(self.body_timeout);
        options.largest_body = usize::try_from(self.max_body)?;
        options.images.max_images = self.max_images as usize;
        options.images.largest = usize::try_from(self.max_image)?;
        let hosts = &self.allow_remote_images;
        options.images.videos = self.allow_videos;
        options.images.remote = (!hosts.is_empty()).then(|| hosts.clone());
        if let Some(bytes) = self.bodies_memory {
            options.bodies_memory = usize::try_from(bytes)?;
        }
        options.drain = seconds(self.drain);
        Ok(())
    }

    /// Fits what requests take into the free memory: an eighth for bodies, half for encoding texts. Call it once the models
    /// are loaded.
    pub(crate) fn fit(&self, options: &mut ServerOptions) {
        let free = welte::available_memory();
        let Some(free) = free.and_then(|free| usize::try_from(free).ok()) else {
            return;
        };
        if self.bodies_memory.is_none() {
            options.bodies_memory = options.bodies_memory.min(free / 8);
        }
        let text = free / 2 / ENCODING_BYTES;
        options.longest_text = options.longest_text.min(text);
        let encoders = text / options.longest_text.max(1);
        options.encoders = options.encoders.min(encoders).max(1);
    }
}
