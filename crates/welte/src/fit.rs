//! Whether a plan fits in memory, and what would fit.

use crate::devices::{open_device, with_experts_on_cpu};
use crate::{Error, LoadOptions};
use std::sync::Arc;
use welte_device::{Demand, Device, DeviceId, Plan};

/// Refuses a plan that exceeds the available memory, and says how long a context would fit, and how many layers' experts
/// on the CPU would make it fit. `plan_for` plans another context; `fewest_on_cpu` is as the function of that name.
pub(crate) fn check_memory(
    origin: &str,
    plan: &Plan,
    device: &dyn Device,
    plan_for: impl Fn(u32) -> Result<Plan, Error>,
    fewest_on_cpu: impl FnOnce() -> Option<u32>,
) -> Result<(), Error> {
    let demands = device.demands(plan);
    let Some(at) = demands.iter().position(|demand| lack(demand) > 0) else {
        return Ok(());
    };
    let need_of = |plan: &Plan| device.demands(plan).get(at).map_or(0, |demand| demand.need);
    let Demand { need, .. } = demands[at];
    // Memory grows linearly with the context, so two plans give the slope.
    let (context, half) = (plan.program.context, plan.program.context / 2);
    let per_half = need.saturating_sub(match half {
        0 => need,
        half => need_of(&plan_for(half)?),
    });
    let per_position = (per_half / u64::from(context - half).max(1)).max(1);
    let excess = lack(&demands[at]).div_ceil(per_position);
    let fits = u64::from(context).saturating_sub(excess) / 256 * 256;
    Err(Error::Memory {
        origin: origin.to_string(),
        device: demands[at].device,
        need,
        have: demands[at].have.unwrap_or(u64::MAX),
        fits_context: u32::try_from(fits).ok().filter(|fits| *fits > 0),
        fits_cpu_experts: fewest_on_cpu(),
    })
}

/// Bytes that are too few.
fn lack(demand: &Demand) -> u64 {
    let have = demand.have.unwrap_or(u64::MAX);
    demand.need.saturating_sub(have)
}

/// The fewest layers whose experts must be on the CPU, more than now, so that a mixture of `layers` layers fits. `None` if
/// that does not help. `plan_on` plans on a device.
pub(crate) fn fewest_on_cpu(
    id: DeviceId,
    layers: u32,
    options: &LoadOptions,
    plan_on: impl Fn(&dyn Device, &LoadOptions) -> Result<Plan, Error>,
) -> Option<u32> {
    let split = LoadOptions {
        cpu_experts: 1,
        ..options.clone()
    };
    let near = open_device(id, &split.for_device()).ok()?;
    let demands = |layers: u32| {
        let device = with_experts_on_cpu(near.clone(), layers, &split.for_device()).ok()?;
        let plan = plan_on(device.as_ref(), &split).ok()?;
        Some(device.demands(&plan))
    };
    fewest(options.cpu_experts + 1, layers, demands)
}

/// The least of `from..=to` layers whose demands are met. The first demand falls with the layers, others grow.
fn fewest(from: u32, to: u32, demands: impl Fn(u32) -> Option<Vec<Demand>>) -> Option<u32> {
    let fits_near = |layers| demands(layers).is_some_and(|all| lack(&all[0]) == 0);
    let (mut least, mut most) = (from, to);
    if least > most || !fits_near(most) {
        return None;
    }
    while least < most {
        let middle = least + (most - least) / 2;
        match fits_near(middle) {
            true => most = middle,
            false => least = middle + 1,
        }
    }
    let fits = demands(least)?.iter().all(|demand| lack(demand) == 0);
    fits.then_some(least)
}

/// The device as the options want it: with the experts of some layers on the CPU, or as it is.
pub(crate) fn placed(
    device: Arc<dyn Device>,
    options: &LoadOptions,
) -> Result<Arc<dyn Device>, Error> {
    match options.cpu_experts {
        0 => Ok(device),
        layers => with_experts_on_cpu(device, layers, &options.for_device()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_layers_that_make_room_are_found() {
        let device = DeviceId::only("reference");
        let demand = |need, have| Demand { device, need, have };
        // The near device needs 100 without its 10 layers, and 10 for each of them.
        let least = |near, far| {
            fewest(1, 10, |layers| {
                let layers = u64::from(layers);
                Some(vec![
                    demand(200 - 10 * layers, Some(near)),
                    demand(10 * layers, far),
                ])
            })
        };
        assert_eq!(least(190, None), Some(1));
        assert_eq!(least(189, None), Some(2));
        assert_eq!(least(100, None), Some(10));
        assert_eq!(least(99, None), None, "all else is too large");
        assert_eq!(least(150, Some(50)), Some(5));
        assert_eq!(least(150, Some(49)), None, "the CPU has no room");
        assert_eq!(fewest(11, 10, |_| None), None);
    }
}
