//! Exchanges between ranks: a kernel that writes a rank's parts into the memory of all others and waits for theirs.

use crate::Error;
use crate::arithmetic::Rounding;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use welte_device::Exchange;
use welte_table::{Access, Command, Op, Pass, Program, accesses, human, params};

/// The most ranks: `RANKS` of `exchange.cu`.
pub(crate) const MOST_RANKS: usize = 8;
/// Floats that a block hands over at a time: `CHUNK`.
const CHUNK: u64 = 2048;
/// Blocks of a launch where another rank is on the same GPU: all must run at the same time as its own.
pub(crate) const FEW_BLOCKS: u32 = 32;
/// Blocks of a launch for each multiprocessor otherwise.
pub(crate) const BLOCKS_EACH: u32 = 4;

mirrored! {
    /// `Seats` of `exchange.cu`.
    pub(crate) struct Seats = "Seats" {
        pub(crate) inboxes: [u64; MOST_RANKS],
        pub(crate) capacity: u64,
        pub(crate) chunks: u64,
        pub(crate) counts: u64,
        pub(crate) fault: u64,
        pub(crate) failed: u64,
    }
}

mirrored! {
    /// `ExchangeArgs` of `exchange.cu`.
    struct ExchangeArgs = "ExchangeArgs" {
        step: u64,
        seats: u64,
        part: u64,
        y: u64,
        starts: [u32; MOST_RANKS],
        counts: [u32; MOST_RANKS],
        rank: u32,
        ranks: u32,
        vectors: u32,
        width: u32,
        part_stride: u32,
        y_stride: u32,
        single: u32,
        most: u32,
        wide: u32,
        rounding: u32,
    }
}

/// How the floats of an exchange in a pass travel: if all commands of the pass that read the buffer round it alike, it does not change their bits.
/// `rounds` says how a command rounds the rows that it reads, if it does.
pub(crate) fn rounding(
    pass: &Pass,
    exchange: &Command,
    rounds: impl Fn(&Command) -> Option<Rounding>,
) -> Rounding {
    let whole = exchange.buffers[1];
    if pass.result.buffer == whole.buffer {
        return Rounding::Whole;
    }
    let mut found = None;
    for command in &pass.commands {
        let accesses = accesses(command);
        // What is overwritten without being read does not count, and a rank's own part is never rounded.
        let reads = |one: &Access| {
            one.at.buffer == whole.buffer
                && !(one.writes && command.op.replaces())
                && command.op != Op::Exchange
        };
        if !accesses.iter().any(reads) {
            continue;
        }
        let rounding = rounds(command).filter(|_| command.buffers[1].buffer != whole.buffer);
        match (rounding, found) {
            (Some(one), None) => found = Some(one),
            (Some(one), Some(other)) if one == other => {}
            _ => return Rounding::Whole,
        }
    }
    found.unwrap_or_default()
}

/// The structs that the kernel checks.
pub(crate) const MIRRORS: &[Layout] = &[Seats::LAYOUT, ExchangeArgs::LAYOUT];

/// The memory of a program's exchanges on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inbox {
    pub(crate) ranks: u64,
    /// Floats of a rank's largest part in all rows.
    pub(crate) capacity: u64,
    /// Where its places are. All else is on the GPU.
    pub(crate) memory: Exchange,
}

impl Inbox {
    pub(crate) fn of(program: &Program, memory: Exchange) -> Inbox {
        let mut inbox = Inbox {
            memory,
            ..Inbox::default()
        };
        for pass in &program.passes {
            for (index, command) in pass.commands.iter().enumerate() {
                if command.op == Op::Exchange {
                    let p = params::Exchange::of(&command.params);
                    let floats =
                        u64::from(pass.rows_at(index)) * u64::from(p.vectors) * u64::from(most(&p));
                    inbox.ranks = p.ranks.into();
                    inbox.capacity = inbox.capacity.max(floats.next_multiple_of(CHUNK));
                }
            }
        }
        inbox
    }

    pub(crate) fn chunks(self) -> u64 {
        self.capacity / CHUNK
    }

    /// Bytes of the inbox alone: places and flags of every rank, twice.
    fn places(self) -> u64 {
        2 * self.ranks * (4 * self.capacity + 4 * self.chunks())
    }

    /// How ranks exchange, for a person; `None`: it is not a rank.
    pub(crate) fn explain(self) -> Option<String> {
        let how = match self.memory {
            Exchange::Peers => "in each other's memory".to_string(),
            Exchange::Host => format!(
                "through the host's memory, which is slower than the GPUs' own; each rank pins {} of it",
                human(self.on_host())
            ),
        };
        (self.ranks > 0).then_some(how)
    }

    /// Bytes of places in the host's memory.
    pub(crate) fn on_host(self) -> u64 {
        match self.memory {
            Exchange::Peers => 0,
            Exchange::Host => self.places(),
        }
    }

    /// Offsets of the counts and of the [`Seats`] on the GPU, and the bytes of everything there.
    pub(crate) fn layout(self) -> [u64; 3] {
        let counts = (self.places() - self.on_host()).next_multiple_of(16);
        let seats = (counts + 4 * self.chunks()).next_multiple_of(16);
        let end = seats + size_of::<Seats>() as u64;
        [counts, seats, if self.ranks == 0 { 0 } else { end }]
    }
}

/// The floats of the largest part of a vector.
fn most(p: &params::Exchange) -> u32 {
    (0..p.ranks)
        .map(|rank| p.part(rank).len() as u32)
        .max()
        .unwrap_or(0)
}

fn unit() -> Unit {
    Unit {
        file: "exchange.cu",
        generated: String::new(),
        defines: Vec::new(),
    }
}

/// The kernel of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let p = params::Exchange::of(&command.params);
    let [part, y, ..] = command.buffers;
    let (mut starts, mut counts) = ([0; MOST_RANKS], [0; MOST_RANKS]);
    let places = starts.iter_mut().zip(&mut counts);
    for (rank, (start, count)) in (0..p.ranks).zip(places) {
        let part = p.part(rank);
        (*start, *count) = (part.start, part.len() as u32);
    }
    let most = most(&p);
    let floats = u64::from(rows) * u64::from(p.vectors) * u64::from(most);
    let (from, to) = (cx.buffer(part), cx.buffer(y));
    let strides = [p.part_stride, p.y_stride, p.deal().width()];
    let mut sizes = strides.iter().chain(&starts).chain(&counts);
    let wide = sizes.all(|size| size.is_multiple_of(4)) && (from | to).is_multiple_of(16);
    let a = ExchangeArgs {
        step: cx.step,
        seats: cx.places.seats,
        part: from,
        y: to,
        starts,
        counts,
        rank: p.rank,
        ranks: p.ranks,
        vectors: p.vectors,
        width: p.deal().width(),
        part_stride: p.part_stride,
        y_stride: p.y_stride,
        single: u32::from(rows == 1),
        most,
        wide: u32::from(wide),
        rounding: cx.rounding as u32,
    };
    let blocks = cx.places.exchange_blocks.max(1);
    Ok(vec![Node::Kernel(Launch {
        unit: unit(),
        function: "exchange",
        grid: [floats.div_ceil(CHUNK).clamp(1, blocks.into()) as u32, 1, 1],
        by_rows: ByRows::Fixed,
        block: 256,
        shared: 0,
        args: args(&a),
    })])
}

/// For tests that compile every kernel.
pub(crate) fn catalogue() -> Vec<Listed> {
    vec![Listed {
        unit: unit(),
        hot: false,
    }]
}
