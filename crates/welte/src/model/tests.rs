//! Loading and planning, with devices that are made up.

use super::*;
use welte_device::DeviceId;
use welte_table::{Command, Op};

/// The reference device with limits.
struct Limited {
    device: Arc<dyn Device>,
    missing: Option<&'static str>,
    without: Option<Op>,
    memory: Option<u64>,
}

impl Limited {
    fn new() -> Limited {
        Limited {
            device: open_device(DeviceId::only("reference"), &DeviceOptions::default()).unwrap(),
            missing: None,
            without: None,
            memory: None,
        }
    }
}

impl Device for Limited {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }
    fn supports(&self, command: &Command) -> bool {
        self.without != Some(command.op)
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
    device.without = Some(Op::Attention);
    let (id, what) = lacks(&device);
    assert_eq!(id, reference);
    assert!(what.contains("no attention"), "{what}");
    // A fused op is split.
    device.without = Some(Op::NormMatmul);
    let plan = plan_tiny(&device, &context(64)).unwrap();
    let commands = plan.program.passes.iter().flat_map(|pass| &pass.commands);
    assert!(commands.into_iter().all(|c| c.op != Op::NormMatmul));
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
