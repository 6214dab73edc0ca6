//! Planning and loading.

use crate::context::RanksContext;
use crate::dealt::{Dealt, Numbers};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use web_time::Duration;
use welte_device::{
    Context, Demand, Device, DeviceInfo, Error, Loaded, Meeting, Phase, Plan, Progress,
};
use welte_formats::Checkpoint;
use welte_table::{
    BankPart, CacheKind, Class, Kept, MemoryPlan, NO_BUFFER, Op, Pattern, Program, Shard,
    fuse_tracked, human, shard, verify,
};

/// Raised with every change that gives other bits.
const ARITHMETIC: u32 = 1;

/// Matrices of fewer bytes are left whole where dealing them costs an exchange: reading them takes no longer.
const LEAST: u64 = 1 << 20;

/// How long ranks wait for each other.
const PATIENCE: Duration = Duration::from_secs(60);

/// A rank on each of these devices, of which there are at least two. Matrices of fewer bytes than `least` are left whole where dealing them
/// costs an exchange; `None`: those that are read as fast.
pub fn device(devices: Vec<Arc<dyn Device>>, least: Option<u64>) -> Arc<dyn Device> {
    device_by(devices, least.unwrap_or(LEAST), PATIENCE)
}

/// The same with another patience of ranks.
pub fn device_by(devices: Vec<Arc<dyn Device>>, least: u64, patience: Duration) -> Arc<dyn Device> {
    assert!(devices.len() > 1, "ranks are several");
    let first = devices[0].info();
    let mut names: Vec<(String, u32)> = Vec::new();
    for device in &devices {
        match names.last_mut() {
            Some((name, count)) if *name == device.info().name => *count += 1,
            _ => names.push((device.info().name.clone(), 1)),
        }
    }
    let named = |(name, count): (String, u32)| match count {
        1 => name,
        count => format!("{count} x {name}"),
    };
    let names: Vec<String> = names.into_iter().map(named).collect();
    Arc::new(RanksDevice {
        info: DeviceInfo {
            name: names.join(" and "),
            ..first.clone()
        },
        devices,
        least,
        patience,
    })
}

struct RanksDevice {
    /// That of rank 0, with the names of all.
    info: DeviceInfo,
    devices: Vec<Arc<dyn Device>>,
    least: u64,
    patience: Duration,
}

/// What planning has worked out for loading.
struct Planned {
    dealt: Arc<Dealt>,
    plans: Vec<Plan>,
}

impl RanksDevice {
    fn ranks(&self) -> u32 {
        self.devices.len() as u32
    }

    fn wrong(&self, why: impl Into<String>) -> Error {
        Error::Program {
            device: self.info.id,
            why: why.into(),
        }
    }

    /// What each memory has to hold.
    fn demands_of(&self, plans: &[Plan]) -> Vec<Demand> {
        let mut all: Vec<Demand> = Vec::new();
        for (device, plan) in self.devices.iter().zip(plans) {
            let id = device.info().id;
            let need = plan.memory.total();
            match all.iter_mut().find(|demand| demand.device == id) {
                Some(demand) => demand.need += need,
                None => all.push(Demand {
                    device: id,
                    need,
                    have: device.available_memory(),
                }),
            }
        }
        all
    }

    /// What each rank has, for a person.
    fn facts(&self, program: &Program, plans: &[Plan]) -> Vec<(String, String)> {
        let mut facts = plans.first().map_or(Vec::new(), |plan| plan.facts.clone());
        for (rank, plan) in plans.iter().enumerate() {
            let id = self.devices[rank].info().id;
            let bytes = |class| human(plan.memory.bytes(class));
            let heads = plan.program.caches.iter().zip(&program.caches);
            let heads = heads.filter_map(|(own, whole)| match (own.kind, whole.kind) {
                (
                    CacheKind::Attention { kv_heads, .. },
                    CacheKind::Attention { kv_heads: all, .. },
                ) => Some(format!("{kv_heads} of {all} heads of {}", whole.name)),
                _ => None,
            });
            let (weights, caches) = (bytes(Class::Weights), bytes(Class::Cache));
            let mut text = vec![format!("{id}, weights {weights}, caches {caches}")];
            text.extend(heads);
            facts.push((format!("rank {rank}"), text.join(", ")));
        }
        let passes = plans.iter().take(1).flat_map(|plan| &plan.program.passes);
        let exchanges = passes.map(|pass| {
            let count = pass
                .commands
                .iter()
                .filter(|c| c.op == Op::Exchange)
                .count();
            format!("{count} in a {} step", pass.kind.name())
        });
        facts.push((
            "exchanges".to_string(),
            exchanges.collect::<Vec<_>>().join(", "),
        ));
        for demand in self.demands_of(plans) {
            let text = match demand.have {
                Some(have) => format!("{} of {} available", human(demand.need), human(have)),
                None => human(demand.need),
            };
            facts.push((format!("memory on {}", demand.device), text));
        }
        facts
    }
}

/// A rank's program as its device runs it.
fn fused(part: Shard, patterns: &[Pattern], buffers: usize) -> (Program, Numbers) {
    let fused = fuse_tracked(part.program, patterns);
    let origins = part.origins.iter().zip(&fused.ends);
    let commands = origins.map(|(origins, ends)| ends.iter().map(|end| origins[*end]).collect());
    let number = |(id, number): (usize, &u32)| {
        let kept = part.kept[id];
        (kept != Kept::Part && *number != NO_BUFFER).then_some((*number, kept))
    };
    let numbers = Numbers {
        commands: commands.collect(),
        buffers: fused
            .buffers
            .iter()
            .enumerate()
            .take(buffers)
            .map(number)
            .collect(),
        banks: part
            .banks
            .into_iter()
            .map(|bank| BankPart {
                buffer: fused.buffers[bank.buffer as usize],
                ..bank
            })
            .collect(),
    };
    (fused.program, numbers)
}

impl Device for RanksDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Each rank's program is fused by itself, after it was dealt.
    fn patterns(&self) -> &'static [Pattern] {
        &[]
    }

    fn missing(&self, program: &Program) -> Option<String> {
        let refused =
            |why: &str| Some(format!("a way to deal it to {} ranks: {why}", self.ranks()));
        let parts = match shard(program, self.ranks(), self.least) {
            Ok(shards) => shards.ranks,
            Err(why) => return refused(&why),
        };
        let is_dealt =
            |part: &Shard| (0..program.passes.len()).any(|pass| part.exchanges(pass) > 0);
        // Tests deal everything, even what is nothing.
        if self.least > 0 && !parts.iter().any(is_dealt) {
            return refused("nothing of it can be dealt");
        }
        let mut pairs = self.devices.iter().zip(&parts);
        pairs.find_map(|(device, part)| device.missing(&part.program))
    }

    fn takes_features(&self) -> bool {
        self.devices.iter().all(|device| device.takes_features())
    }

    fn adapts(&self) -> bool {
        self.devices.iter().all(|device| device.adapts())
    }

    fn drafts(&self) -> bool {
        self.devices.iter().all(|device| device.drafts())
    }

    fn plan(&self, program: Arc<Program>) -> Result<Plan, Error> {
        verify(&program).map_err(|why| self.wrong(why))?;
        let shards = shard(&program, self.ranks(), self.least).map_err(|why| self.wrong(why))?;
        let mut memory = MemoryPlan::default();
        let (mut plans, mut numbers) = (Vec::new(), Vec::new());
        for ((rank, part), device) in shards.ranks.into_iter().enumerate().zip(&self.devices) {
            let (own, of_rank) = fused(part, device.patterns(), program.buffers.len());
            let plan = device.plan(Arc::new(own))?;
            for entry in &plan.memory.entries {
                memory.add(
                    &format!("{} of rank {rank}", entry.name),
                    entry.class,
                    entry.bytes,
                );
            }
            plans.push(plan);
            numbers.push(of_rank);
        }
        let facts = self.facts(&program, &plans);
        let dealt = Arc::new(Dealt {
            program: program.clone(),
            caches: shards.caches,
            numbers,
            patience: self.patience,
            takes_features: self.takes_features(),
        });
        memory.add(
            "pages between ranks",
            Class::Tables,
            crate::pages::bytes(&dealt),
        );
        Ok(Plan {
            program,
            memory,
            facts,
            private: Box::new(Planned { dealt, plans }),
        })
    }

    fn available_memory(&self) -> Option<u64> {
        self.devices[0].available_memory()
    }

    fn demands(&self, plan: &Plan) -> Vec<Demand> {
        match plan.private.downcast_ref::<Planned>() {
            Some(planned) => self.demands_of(&planned.plans),
            None => Vec::new(),
        }
    }

    fn load(
        &self,
        plan: Plan,
        checkpoint: &dyn Checkpoint,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Arc<dyn Loaded>, Error> {
        let planned = plan.private.downcast::<Planned>();
        let Planned { dealt, plans } =
            *planned.map_err(|_| self.wrong("another device made the plan"))?;
        let weights = |plan: &Plan| plan.memory.bytes(Class::Weights);
        let total = plans.iter().map(weights).sum();
        let mut done: BTreeMap<usize, u64> = BTreeMap::new();
        let (tell, told) = mpsc::channel();
        let loaded: Result<Vec<Arc<dyn Loaded>>, Error> = std::thread::scope(|scope| {
            let pairs = self.devices.iter().zip(plans).enumerate();
            let threads: Vec<_> = pairs
                .map(|(rank, (device, plan))| {
                    let tell = tell.clone();
                    scope.spawn(move || {
                        device.load(plan, checkpoint, &mut |one| {
                            // Nobody listens after an error.
                            let _ = tell.send((rank, one));
                        })
                    })
                })
                .collect();
            drop(tell);
            for (rank, one) in told {
                progress(match one {
                    Progress::Weights { done: of_rank, .. } => {
                        done.insert(rank, of_rank);
                        let done = done.values().sum();
                        Progress::Weights { done, total }
                    }
                    tuning => tuning,
                });
            }
            let loaded = threads.into_iter().map(|thread| {
                let loaded = thread.join();
                loaded.unwrap_or_else(|_| Err(self.wrong("a rank panicked while it loaded")))
            });
            loaded.collect()
        });
        Ok(Arc::new(LoadedRanks {
            dealt,
            ranks: loaded?,
        }))
    }

    /// That of all memories together.
    fn read_bandwidth(&self, seconds: f64) -> Result<f64, Error> {
        let mut ids: Vec<_> = Vec::new();
        let mut sum = 0.0;
        for device in &self.devices {
            if !ids.contains(&device.info().id) {
                ids.push(device.info().id);
                sum += device.read_bandwidth(seconds)?;
            }
        }
        Ok(sum)
    }
}

/// A program's weights on all devices.
struct LoadedRanks {
    dealt: Arc<Dealt>,
    ranks: Vec<Arc<dyn Loaded>>,
}

impl Loaded for LoadedRanks {
    fn program(&self) -> &Arc<Program> {
        &self.dealt.program
    }

    fn arithmetic(&self) -> String {
        let (first, count) = (self.ranks[0].arithmetic(), self.ranks.len());
        format!("{first}; {count} ranks, version {ARITHMETIC}")
    }

    fn context(&self) -> Result<Box<dyn Context>, Error> {
        let seats = Meeting::patient(self.ranks.len() as u32, self.dealt.patience);
        let made: Vec<_> = std::thread::scope(|scope| {
            let pairs = self.ranks.iter().zip(&seats);
            let threads: Vec<_> = pairs
                .map(|(loaded, seat)| {
                    scope.spawn(move || {
                        let make = AssertUnwindSafe(|| loaded.rank_context(seat.clone()));
                        let panicked = |_| Err(Error::request("a rank panicked while it started"));
                        let made = catch_unwind(make).unwrap_or_else(panicked);
                        if let Err(error) = &made {
                            seat.fail(error.to_string());
                        }
                        made
                    })
                })
                .collect();
            let made = threads.into_iter().map(|thread| thread.join());
            made.collect()
        });
        let mut contexts = Vec::new();
        let mut failed = None;
        for one in made {
            match one {
                Ok(Ok(context)) => contexts.push(context),
                // Those that only heard of a failure come second.
                Ok(Err(error)) => match failed {
                    Some(Error::Rank { .. }) | None => failed = Some(error),
                    Some(_) => {}
                },
                Err(_) => failed = Some(Error::request("a rank panicked while it started")),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(Box::new(RanksContext::new(
                self.dealt.clone(),
                contexts,
                seats,
            )?)),
        }
    }

    fn phases(&self) -> Vec<Phase> {
        self.ranks[0].phases()
    }
}
