//! A program planned for a GPU: its memory, and how chains will be replayed. Known before anything is allocated.

use crate::arithmetic::Arithmetic;
use crate::ops::exchange::Inbox;
use crate::persistent::{self, Inputs, ONE_ROW, Recording};
use crate::sizes::Sizes;
use crate::{Error, GpuInfo, layout, ops};
use std::sync::Arc;
use welte_device::{Activations, DeviceOptions, Replay, Replaying, Steps};
use welte_table::{CacheKind, CacheSpec, MemoryPlan, PassKind, Program, verify};

/// The ways in which a GPU can replay chains. The text says why the persistent kernel is not among them, if so.
pub(crate) fn replays(gpu: &GpuInfo) -> (Vec<Replay>, Option<String>) {
    let mut all = vec![Replay::Graph, Replay::Loop, Replay::Launches];
    match persistent::possible(gpu) {
        Ok(()) => {
            all.insert(0, Replay::Persistent);
            (all, None)
        }
        Err(why) => (all, Some(not_persistent(&why))),
    }
}

/// The beginning of every reason.
fn not_persistent(why: &str) -> String {
    format!("not the persistent kernel: {why}")
}

/// Programs with at least this number of slots decode by products on tensor cores, if not by persistent kernels. With fewer rows matrix-vector
/// kernels are faster.
const BATCHED_SLOTS: u32 = 5;

/// A program with everything that this device works out before it loads.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) program: Arc<Program>,
    pub(crate) gpu: GpuInfo,
    /// The requested way of replaying chains.
    pub(crate) replay: Replay,
    /// Whether to tune even if stored parameters exist.
    pub(crate) retune: bool,
    pub(crate) sizes: Sizes,
    /// The arithmetic of decode passes.
    pub(crate) decode: Arithmetic,
    /// Whether FP8 weights are multiplied with activations in FP8.
    pub(crate) float8: bool,
    /// The decode pass recorded for the persistent kernel, or why there is none.
    pub(crate) recording: Result<Recording, String>,
    /// The same for steps. Without it steps are computed row by row by the kernel for chains, if there is that.
    pub(crate) rows: Result<Recording, String>,
    /// The most rows of a step of the persistent kernels, where launched kernels compute larger ones ([`Steps::Fast`]).
    pub(crate) few: Option<u32>,
}

impl Planned {
    /// Plans for a GPU, which need not exist.
    pub(crate) fn of(
        program: Arc<Program>,
        gpu: &GpuInfo,
        options: &DeviceOptions,
    ) -> Result<Planned, Error> {
        verify(&program).map_err(Error::Program)?;
        let inputs = Inputs {
            program: &program,
            gpu,
        };
        let float8 = options.activations == Activations::Float8;
        if float8 {
            check_float8(&program, gpu)?;
        }
        let inbox = Inbox::of(&program, options.exchange);
        let Recorded {
            chains: recording,
            rows,
            few,
        } = if inbox.on_host() > 0 {
            Recorded::none("the ranks exchange through the host's memory".to_string())
        } else {
            Recorded::of(&inputs, float8, options.steps)
        };
        let bytes = [&recording, &rows].map(|r| r.as_ref().map_or(0, |r| r.memory().bytes));
        let usual = match persistent::unproven(gpu) {
            None => Replay::Persistent,
            Some(_) => Replay::Graph,
        };
        let replay = options.replay.unwrap_or(usual);
        let persistent = recording.is_ok() && few.is_none() && replay == Replay::Persistent;
        let decode = if !persistent && (program.slots >= BATCHED_SLOTS || float8) {
            Arithmetic::Batched
        } else {
            Arithmetic::Generated
        };
        Ok(Planned {
            gpu: gpu.clone(),
            replay,
            retune: options.retune,
            sizes: Sizes::of(&program, gpu, decode, float8, bytes, inbox),
            decode,
            float8,
            recording: recording.map_err(|why| not_persistent(&why)),
            rows: rows.map_err(|why| not_persistent(&why)),
            few,
            program,
        })
    }

    /// Everything that loading and one context allocate on the GPU.
    pub(crate) fn memory(&self) -> MemoryPlan {
        let mut plan = MemoryPlan::of(&self.program, &|weight| {
            layout::weight_bytes(weight).unwrap_or(0)
        });
        for (name, class, bytes) in self.sizes.entries() {
            plan.add(name, class, bytes);
        }
        plan
    }

    /// How chains will be replayed.
    pub(crate) fn replaying(&self) -> Replaying {
        match (&self.recording, self.replay) {
            _ if self.program.pass(PassKind::Decode).is_none() => Replaying {
                replay: Replay::Launches,
                note: None,
            },
            (Err(why), Replay::Persistent) => Replaying {
                replay: Replay::Graph,
                note: Some(why.clone()),
            },
            (_, replay) => Replaying { replay, note: None },
        }
    }

    /// How chains will be replayed, and whether the persistent kernel could run the program.
    pub(crate) fn explain(&self) -> String {
        let replaying = self.replaying();
        let (but, request) = match persistent::unproven(&self.gpu) {
            None => (String::new(), ""),
            Some(why) => (format!(", but {why}"), ": --replay persistent requests it"),
        };
        if self.program.pass(PassKind::Decode).is_none() {
            return replaying.to_string();
        }
        match (&self.recording, replaying.replay) {
            (Ok(_), Replay::Persistent) if let Some(few) = self.few => {
                format!("{replaying} for up to {few} rows, launches for more{but}")
            }
            (_, Replay::Persistent) if self.program.block.is_some() => {
                format!("{replaying}; chains of one request by graph, for the drafter{but}")
            }
            (_, Replay::Persistent) => match &self.rows {
                Ok(rows) => format!("{replaying}; up to {} rows per launch{but}", rows.rows),
                Err(_) => format!("{replaying}; one row per launch{but}"),
            },
            (Ok(_), _) => {
                format!("{replaying}; the persistent kernel supports this model{but}{request}")
            }
            (Err(_), _) if replaying.note.is_some() => replaying.to_string(),
            (Err(why), _) => format!("{replaying}; {why}"),
        }
    }

    /// The source of a persistent kernel, as one text.
    pub(crate) fn persistent_source(&self, several_rows: bool) -> Result<String, String> {
        let recording = if several_rows {
            &self.rows
        } else {
            &self.recording
        };
        let recording = recording.as_ref().map_err(String::clone)?;
        Ok(persistent::standalone(&recording.unit()))
    }
}

/// The decode pass for the persistent kernels.
struct Recorded {
    chains: Result<Recording, String>,
    rows: Result<Recording, String>,
    few: Option<u32>,
}

impl Recorded {
    /// Chains and steps give the same bits, so they go by persistent kernels together or not at all. Where the kernel for steps
    /// cannot run the program, the kernel for chains computes them row by row. With several slots that would be slow.
    fn of(inputs: &Inputs<'_>, float8: bool, steps: Steps) -> Recorded {
        let program = inputs.program;
        if float8 && steps == Steps::Alike {
            return Recorded::none("it does not support activations in FP8".to_string());
        }
        let chains = match persistent::record(inputs, ONE_ROW) {
            Ok(chains) => chains,
            Err(why) => return Recorded::none(why),
        };
        let rows = if float8 {
            Err("launched kernels compute in FP8".to_string())
        } else {
            persistent::record_rows(inputs)
        };
        let why = match rows {
            Err(why) if program.slots > 1 || float8 => why,
            rows => {
                return Recorded {
                    chains: Ok(chains),
                    rows,
                    few: None,
                };
            }
        };
        // Only the states of the first slot are saved before a launch.
        let states = |cache: &CacheSpec| matches!(cache.kind, CacheKind::Recurrent { .. });
        if steps == Steps::Alike || program.caches.iter().any(states) {
            return Recorded::none(why);
        }
        let rows = persistent::record_few_rows(inputs);
        let few = rows.as_ref().map_or(1, |rows| rows.rows);
        Recorded {
            chains: Ok(chains),
            rows,
            few: Some(few),
        }
    }

    fn none(why: String) -> Recorded {
        Recorded {
            chains: Err(why.clone()),
            rows: Err(why),
            few: None,
        }
    }
}

/// Refuses activations in FP8 where no product would have them.
fn check_float8(program: &Program, gpu: &GpuInfo) -> Result<(), Error> {
    let refuse = |why: &str| Err(Error::Program(format!("activations in FP8: {why}")));
    if gpu.arch != 90 {
        return refuse("they need a GPU of compute capability 9.0");
    }
    let mut commands = program.passes.iter().flat_map(|pass| &pass.commands);
    if !commands.any(|command| ops::is_float8_product(program, command, gpu)) {
        return refuse("the model has no products with weights in F8_E4M3");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::h200;
    use welte_formats::synthetic::Synthetic;
    use welte_models::CompileOptions;
    use welte_table::{Class, Format};

    /// A synthetic model with a small context.
    fn program(shape: &str, mut compile: CompileOptions) -> Arc<Program> {
        compile.context = 256;
        let checkpoint = Synthetic::parse(shape).unwrap();
        let spec = welte_models::spec(&checkpoint).unwrap();
        let program = welte_models::compile(&spec, &checkpoint, &compile).unwrap();
        Arc::new(welte_table::fuse(program, welte_table::PATTERNS))
    }

    fn example(kv_format: Format) -> Arc<Program> {
        let compile = CompileOptions {
            kv_format,
            ..Default::default()
        };
        program("qwen3-0.6b:q4_0", compile)
    }

    fn for_slots(slots: u32) -> CompileOptions {
        CompileOptions {
            decode_rows: slots,
            slots,
            ..Default::default()
        }
    }

    fn options(replay: Replay) -> DeviceOptions {
        let mut options = DeviceOptions::default();
        options.replay = Some(replay);
        options
    }

    #[test]
    fn the_plan_says_how_it_will_be_replayed_and_why() {
        let of = |kv, replay| Planned::of(example(kv), &h200(), &options(replay)).unwrap();
        let taken = of(Format::F16, Replay::Persistent);
        assert_eq!(taken.explain(), "persistent; up to 8 rows per launch");
        let asked = of(Format::F16, Replay::Graph);
        assert_eq!(
            asked.explain(),
            "graph; the persistent kernel supports this model"
        );
        let taken = of(Format::Q8_0, Replay::Persistent);
        assert_eq!(taken.explain(), "persistent; up to 8 rows per launch");
        let latent = |replay| {
            let program = program("glm-flash-small:q4_0", CompileOptions::default());
            Planned::of(program, &h200(), &options(replay)).unwrap()
        };
        let refused = latent(Replay::Persistent);
        let why = refused.replaying().note.unwrap();
        assert!(why.starts_with("not the persistent kernel: "), "{why}");
        assert_eq!(refused.explain(), format!("graph ({why})"));
        assert_eq!(refused.replaying().replay, Replay::Graph);
        let refused = latent(Replay::Loop);
        assert_eq!(refused.explain(), format!("loop; {why}"));
    }

    #[test]
    fn the_number_of_slots_decides_the_products_of_decode_passes() {
        let decode = |shape: &str, slots, replay| {
            let program = program(shape, for_slots(slots));
            let planned = Planned::of(program, &h200(), &options(replay)).unwrap();
            (planned.replaying().replay, planned.decode)
        };
        let (persistent, graph) = (Replay::Persistent, Replay::Graph);
        let small = "qwen3-0.6b,layers=1:q4_0";
        assert_eq!(
            decode(small, 1, persistent),
            (persistent, Arithmetic::Generated)
        );
        assert_eq!(
            decode(small, 16, persistent),
            (persistent, Arithmetic::Generated)
        );
        assert_eq!(decode(small, 17, persistent), (graph, Arithmetic::Batched));
        assert_eq!(decode(small, 4, graph), (graph, Arithmetic::Generated));
        assert_eq!(decode(small, 5, graph), (graph, Arithmetic::Batched));
        // Shared memory has room for eight rows.
        let large = "qwen3-4b,layers=1:bf16";
        assert_eq!(
            decode(large, 8, persistent),
            (persistent, Arithmetic::Generated)
        );
        assert_eq!(decode(large, 9, persistent), (graph, Arithmetic::Batched));
    }

    #[test]
    fn fast_steps_take_the_persistent_kernels_for_few_rows_of_many_slots() {
        let planned = |shape: &str, slots, steps| {
            let mut options = options(Replay::Persistent);
            options.steps = steps;
            Planned::of(program(shape, for_slots(slots)), &h200(), &options).unwrap()
        };
        for (shape, few) in [
            ("qwen3-0.6b,layers=1:q4_0", 8),
            ("qwen3-4b,layers=1:bf16", 8),
            ("gemma-3-1b,layers=6:q8_0", 1),
            ("qwen3-30b-a3b,layers=1:q4_k", 1),
        ] {
            let fast = planned(shape, 256, Steps::Fast);
            assert_eq!((fast.few, fast.decode), (Some(few), Arithmetic::Batched));
            let said = format!("persistent for up to {few} rows, launches for more");
            assert_eq!(fast.explain(), said, "{shape}");
            let alike = planned(shape, 256, Steps::Alike);
            assert_eq!((alike.few, alike.recording.is_ok()), (None, false));
        }
        // Where all rows go by the persistent kernels, nothing changes.
        let all = planned("qwen3-0.6b,layers=1:q4_0", 8, Steps::Fast);
        assert_eq!((all.few, all.decode), (None, Arithmetic::Generated));
        let states = planned("qwen3.5-small,layers=4:q4_k", 8, Steps::Fast);
        assert_eq!(states.replaying().replay, Replay::Graph);
    }

    /// Norms after a part and experts are computed row by row, so with one slot only.
    #[test]
    fn one_slot_lets_the_kernel_for_chains_compute_steps() {
        let planned = |shape: &str, slots| {
            let program = program(shape, for_slots(slots));
            Planned::of(program, &h200(), &options(Replay::Persistent)).unwrap()
        };
        for (shape, why) in [
            ("gemma-3-1b,layers=6:q8_0", "norms after a part"),
            ("qwen3-30b-a3b,layers=1:q4_k", "few rows"),
            ("gpt-oss-20b,layers=2:mxfp4_moe", "few rows"),
            ("qwen3.5-small,layers=4:q4_k", "recurrent state"),
            ("qwen3.5-moe-small:q4_k", "recurrent state"),
            ("granite-4-small:q4_k", "recurrent state"),
            ("lfm2-1.2b:q4_k", "recurrent state"),
            ("nemotron-h-small:q4_0", "recurrent state"),
            ("gemma4-small:q4_k", "inputs per layer"),
            ("gemma4-moe-small:q4_k", "Gemma 4"),
        ] {
            let one = planned(shape, 1);
            assert_eq!(one.explain(), "persistent; one row per launch", "{shape}");
            let usual = Planned::of(one.program.clone(), &h200(), &DeviceOptions::default());
            let usual = usual.unwrap().replaying().replay;
            assert_eq!(usual, Replay::Persistent, "{shape}");
            // A router's rows are fewer than the blocks.
            assert_eq!(one.recording.unwrap().blocks, h200().sms, "{shape}");
            let several = planned(shape, 4);
            assert_eq!(several.replaying().replay, Replay::Graph);
            let note = several.replaying().note.unwrap();
            assert!(note.contains(why), "{shape}: {note}");
        }
        // Latents, norms of groups before BF16 weights, and several streams.
        let others = [
            "glm-flash-small:q4_0",
            "nemotron-h-small:bf16",
            "gemma-3n-small:q4_0",
        ];
        for shape in others {
            let other = planned(shape, 1);
            assert_eq!(other.replaying().replay, Replay::Graph, "{shape}");
        }
    }

    #[test]
    fn activations_in_fp8_need_weights_in_fp8_and_a_gpu_that_multiplies_them() {
        let planned = |shape: &str, arch| {
            let program = program(shape, CompileOptions::default());
            let mut options = DeviceOptions::default();
            options.activations = Activations::Float8;
            let gpu = GpuInfo { arch, ..h200() };
            Planned::of(program, &gpu, &options).map_err(|e| e.to_string())
        };
        let float8 = "qwen3-0.6b,layers=1:f8_e4m3";
        let taken = planned(float8, 90).expect("a plan");
        // One slot too: all rows have one arithmetic.
        assert_eq!(taken.decode, Arithmetic::Batched);
        let why = taken.replaying().note.expect("a reason");
        assert!(why.contains("activations in FP8"), "{why}");
        let refused = |shape, arch| planned(shape, arch).expect_err("refused");
        assert!(refused(float8, 89).contains("9.0"));
        assert!(
            refused("qwen3-0.6b,layers=1:q4_0", 90).contains("no products with weights in F8_E4M3")
        );
    }

    #[test]
    fn recordings_are_part_of_the_memory_plan() {
        let planned = Planned::of(example(Format::F16), &h200(), &options(Replay::Graph)).unwrap();
        let entries = planned.memory().entries;
        let bytes = |name: &str| {
            let entry = entries.iter().find(|e| e.name == name).unwrap();
            assert_eq!(entry.class, Class::Tables);
            entry.bytes
        };
        let one = planned.recording.as_ref().unwrap().memory().bytes;
        let several = planned.rows.as_ref().unwrap().memory().bytes;
        assert_eq!(bytes("persistent replay"), one);
        assert_eq!(bytes("persistent replay of rows"), several);
        assert!(one > 0 && several > one);
        assert_eq!(planned.rows.as_ref().unwrap().rows, 8);
    }

    #[test]
    fn a_gpu_that_is_too_old_has_the_other_ways() {
        let (ways, why) = replays(&h200());
        assert!(ways.contains(&Replay::Persistent) && why.is_none());
        let old = GpuInfo { arch: 75, ..h200() };
        let (ways, why) = replays(&old);
        assert_eq!(ways, [Replay::Graph, Replay::Loop, Replay::Launches]);
        let why = why.unwrap();
        assert!(why.contains("8.0") && why.contains("7.5"), "{why}");
        // The same reason as for a program.
        let planned = Planned::of(example(Format::F16), &old, &options(Replay::Persistent));
        assert_eq!(planned.unwrap().replaying().note, Some(why));
    }

    /// The kernels' geometry follows the GPU. Where they have never run, they must be requested.
    #[test]
    fn gpus_on_which_the_kernel_never_ran_replay_the_graph_unless_asked() {
        let kinds = [
            (80, 108, 163),
            (86, 84, 99),
            (89, 128, 99),
            (100, 148, 227),
            (120, 170, 99),
        ];
        for (arch, sms, kib) in kinds {
            let shared_per_block = kib << 10;
            #[rustfmt::skip]
            let gpu = GpuInfo { arch, sms, shared_per_block, ..h200() };
            let asked =
                Planned::of(example(Format::F16), &gpu, &options(Replay::Persistent)).unwrap();
            assert_eq!(asked.replaying().replay, Replay::Persistent);
            let never = "has not run on GPUs of compute capability";
            assert!(asked.explain().contains(never), "{}", asked.explain());
            let recording = asked.recording.unwrap();
            assert_eq!(recording.blocks, sms);
            assert!(recording.shared <= shared_per_block);
            let usual = Planned::of(example(Format::F16), &gpu, &DeviceOptions::default()).unwrap();
            assert_eq!(
                usual.replaying(),
                Replaying {
                    replay: Replay::Graph,
                    note: None
                }
            );
            assert!(
                usual.explain().contains("--replay persistent"),
                "{}",
                usual.explain()
            );
        }
    }
}
