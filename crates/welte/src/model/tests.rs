//! Loading and planning, with devices that are made up.

use super::plan::{plan_fitted, plan_on};
use super::*;
use crate::devices::open_device;
use crate::{DEFAULT_CONTEXT, fit};
use welte_device::{DeviceId, DeviceOptions, Plan};
use welte_table::{Op, PATTERNS, Pattern};

/// The reference device with limits.
struct Limited {
    device: Arc<dyn Device>,
    missing: Option<&'static str>,
    patterns: &'static [Pattern],
    memory: Option<u64>,
}

impl Limited {
    fn new() -> Limited {
        Limited {
            device: open_device(DeviceId::only("reference"), &DeviceOptions::default()).unwrap(),
            missing: None,
            patterns: PATTERNS,
            memory: None,
        }
    }
}

impl Device for Limited {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }
    fn patterns(&self) -> &'static [Pattern] {
        self.patterns
    }
    fn missing(&self, _: &Program) -> Option<String> {
        self.missing.map(str::to_string)
    }
    fn plan(&self, program: Arc<Program>) -> Result<Plan, welte_device::Error> {
        self.device.plan(program)
    }
    fn available_memory(&self) -> Option<u64> {
        self.memory
    }
    fn load(
        &self,
        plan: Plan,
        checkpoint: &dyn Checkpoint,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Arc<dyn Loaded>, welte_device::Error> {
        self.device.load(plan, checkpoint, progress)
    }
    fn read_bandwidth(&self, _: f64) -> Result<f64, welte_device::Error> {
        Ok(1.0)
    }
}

#[test]
fn a_load_ends_when_its_caller_says_so() {
    for device in ["cpu", "reference"] {
        let options = LoadOptions {
            device: device.parse().unwrap(),
            ..context(64)
        };
        let source = "synthetic:tiny:q8_0";
        let load = |most: usize| {
            let mut calls = 0;
            let loaded = Model::load_while(source, &options, &mut |_| {
                calls += 1;
                if calls > most {
                    return std::ops::ControlFlow::Break(());
                }
                std::ops::ControlFlow::Continue(())
            });
            (loaded, calls)
        };
        let (whole, all) = load(usize::MAX);
        assert!(whole.is_ok() && all > 2, "{device}: {all} calls");
        // Nothing is told after the end, not even where that was the last word.
        for most in [0, 1, all - 1] {
            let (ended, calls) = load(most);
            assert!(matches!(ended, Err(Error::LoadEnded)), "{device}: {most}");
            assert_eq!(calls, most + 1);
        }
    }
}

fn plan_tiny(device: &dyn Device, options: &LoadOptions) -> Result<Plan, Error> {
    let checkpoint = open("synthetic:tiny:q8_0").unwrap();
    let spec = welte_models::spec(checkpoint.as_ref()).unwrap();
    plan_on(device, checkpoint.as_ref(), &spec, options)
}

fn context(context: u32) -> LoadOptions {
    LoadOptions::default().with_context(context)
}

#[test]
fn what_a_device_lacks_is_named() {
    let lacks = |device: &Limited| match plan_tiny(device, &context(64)) {
        Err(Error::Unsupported { device, what, .. }) => (device, what),
        other => panic!("{:?}", other.err()),
    };
    let mut device = Limited::new();
    device.missing = Some("a third hand");
    let reference = DeviceId::only("reference");
    assert_eq!(lacks(&device), (reference, "a third hand".to_string()));
    device.missing = None;
    // Only what the device declares is fused.
    let mut fused = |patterns| {
        device.patterns = patterns;
        let plan = plan_tiny(&device, &context(64)).unwrap();
        let mut commands = plan.program.passes.iter().flat_map(|pass| &pass.commands);
        commands.any(|c| c.op == Op::NormMatmul)
    };
    assert!(fused(PATTERNS) && !fused(&[]));
}

#[test]
fn a_plan_must_fit_in_the_available_memory() {
    let mut device = Limited::new();
    let plan = plan_tiny(&device, &context(4096)).unwrap();
    let need = plan.memory.total();
    let plan_for = |length| plan_tiny(&Limited::new(), &context(length));
    let position = (need - plan_for(2048).unwrap().memory.total()) / 2048;
    let check = |device: &Limited| fit::check_memory("tiny", &plan, device, plan_for, || None);
    assert!(check(&device).is_ok());
    device.memory = Some(need);
    assert!(check(&device).is_ok());
    // Bytes that lack, and the context that fits.
    for (lack, fits) in [
        (1, Some(3840)),
        (256 * position, Some(3840)),
        (256 * position + 1, Some(3584)),
        (3840 * position, Some(256)),
        (3840 * position + 1, None),
        (need, None),
    ] {
        device.memory = Some(need - lack);
        let Err(Error::Memory {
            need: said,
            have,
            fits_context,
            ..
        }) = check(&device)
        else {
            panic!("{lack} bytes too few are enough")
        };
        assert_eq!((said, have, fits_context), (need, need - lack, fits));
    }
}

#[test]
fn rows_and_context_follow_the_options() {
    let device = Limited::new();
    let sizes = |options: &LoadOptions| {
        let program = plan_tiny(&device, options).unwrap().program;
        let rows = |kind| program.passes[program.pass(kind).unwrap()].rows;
        let (decode, prompt) = (rows(PassKind::Decode), rows(PassKind::Prompt));
        (program.context, decode, prompt)
    };
    let own = device.info().prompt_rows;
    let all = context(4096);
    assert_eq!(sizes(&all), (4096, 16, own));
    let some = LoadOptions {
        decode_rows: 3,
        prompt_rows: 7,
        ..all.clone()
    };
    assert_eq!(sizes(&some), (4096, 3, 7));
    let wide = LoadOptions {
        decode_rows: 0,
        prompt_rows: 7,
        ..context(5)
    };
    assert_eq!(sizes(&wide), (5, 1, 5));
}

/// What is chosen with four slots: context, positions in the caches, and whether memory limited them.
fn fitted(memory: Option<u64>, change: impl FnOnce(&mut LoadOptions)) -> (u32, u32, bool) {
    let mut device = Limited::new();
    device.memory = memory;
    let mut options = LoadOptions {
        fit_context: true,
        slots: 4,
        ..LoadOptions::default()
    };
    change(&mut options);
    let checkpoint = open("synthetic:custom,context=40000:q8_0").unwrap();
    let spec = welte_models::spec(checkpoint.as_ref()).unwrap();
    let planned = plan_fitted(&device, checkpoint.as_ref(), &spec, &options).unwrap();
    let fitted = planned.fitted.unwrap();
    assert_eq!(fitted.own, 40000);
    assert_eq!(planned.plan.program.context, fitted.context);
    assert_eq!(planned.sized.cache_positions, fitted.positions);
    // At least the default context is planned, and what the options name.
    if fitted.context > DEFAULT_CONTEXT && options.context == 0 {
        assert!(memory.is_none_or(|memory| planned.plan.memory.total() <= memory));
    }
    (fitted.context, fitted.positions, fitted.limited)
}

/// Bytes of a plan of four slots.
fn bytes_of(context: u32, positions: u32) -> u64 {
    let checkpoint = open("synthetic:custom,context=40000:q8_0").unwrap();
    let spec = welte_models::spec(checkpoint.as_ref()).unwrap();
    let options = LoadOptions {
        context,
        slots: 4,
        cache_positions: positions,
        ..LoadOptions::default()
    };
    let plan = plan_on(&Limited::new(), checkpoint.as_ref(), &spec, &options);
    plan.unwrap().memory.total()
}

#[test]
fn the_context_is_the_models_own_as_far_as_memory_allows() {
    let none = |_: &mut LoadOptions| ();
    assert_eq!(fitted(None, none), (40000, 40000, false));
    // Nine tenths of what is left beside the least.
    let least = bytes_of(4096, 4096);
    let room = |context, positions| {
        let caches = bytes_of(context, positions) - least;
        Some(least + (caches as f64 / 0.9).ceil() as u64)
    };
    assert_eq!(fitted(room(40000, 40000), none), (40000, 40000, false));
    let less = room(40000, 40000).map(|room| room - 4096);
    assert_eq!(fitted(less, none), (39936, 39936, true));
    assert_eq!(fitted(room(20480, 20480), none), (20480, 20480, true));
    // Never less than the default, which the check of the memory may then refuse.
    assert_eq!(fitted(Some(least), none), (4096, 4096, true));
    assert_eq!(fitted(Some(1), none), (4096, 4096, true));
    // The caches never hold less than they would by default, and a limit counts like the memory.
    let short = |o: &mut LoadOptions| o.slots = 20;
    assert_eq!(fitted(None, short), (40000, 81920, false));
    let within = |o: &mut LoadOptions| o.fit_within = room(20480, 20480);
    assert_eq!(fitted(None, within), (20480, 20480, true));
    // An encoder beside the model takes what caches would have had.
    let all = room(40000, 40000).unwrap() - room(20480, 20480).unwrap();
    let sees = |o: &mut LoadOptions| o.encoder = all;
    assert_eq!(fitted(room(40000, 40000), sees), (20480, 20480, true));
    let others = |o: &mut LoadOptions| o.fit_with_others = true;
    let (context, ..) = fitted(room(40000, 40000), others);
    assert!((20000..24000).contains(&context), "{context}");
}

#[test]
fn a_context_that_was_named_is_kept_and_caches_are_cut() {
    let named = |o: &mut LoadOptions| o.context = 8192;
    assert_eq!(fitted(None, named), (8192, 32768, false));
    let least = bytes_of(4096, 4096);
    let half = bytes_of(8192, 16384) - least;
    let memory = least + (half as f64 / 0.9).ceil() as u64;
    assert_eq!(fitted(Some(memory), named), (8192, 16384, true));
    assert_eq!(fitted(Some(least), named), (8192, 8192, true));
    let sized = |o: &mut LoadOptions| o.cache_positions = 10240;
    assert_eq!(fitted(None, sized), (10240, 10240, false));
    let both = |o: &mut LoadOptions| (o.context, o.cache_positions) = (2048, 10240);
    assert_eq!(fitted(None, both), (2048, 10240, false));
}

#[test]
fn experts_beside_or_eight_bits_need_a_gpu() {
    let options = LoadOptions::default;
    let beside = LoadOptions {
        cpu_experts: 1,
        ..options()
    };
    let narrow = LoadOptions {
        activations: Activations::Float8,
        ..options()
    };
    let both = LoadOptions {
        cpu_experts: 1,
        ..narrow.clone()
    };
    assert!(!options().needs_gpu());
    for one in [&beside, &narrow, &both] {
        assert!(one.needs_gpu());
    }
    // Weights are narrowed for them, unless they are narrow already.
    let formats = |source: &str, options: &LoadOptions| {
        let checkpoint = as_asked(open(source).unwrap(), options);
        let all = checkpoint.tensors().iter().map(|tensor| tensor.format);
        all.collect::<Vec<Format>>()
    };
    let (wide, own) = ("synthetic:tiny:bf16", "synthetic:tiny:f8_e4m3");
    assert!(!formats(wide, &options()).contains(&Format::F8_E4M3));
    assert!(formats(wide, &narrow).contains(&Format::F8_E4M3));
    assert_eq!(formats(own, &narrow), formats(own, &options()));
}
