//! Whether a plan fits in memory, what would fit, and the longest context that does.

use crate::devices::{KINDS, Kind, open_device, open_ranks, with_experts_on_cpu};
use crate::{DEFAULT_CONTEXT, DealtMemory, DeviceChoice, Error, LoadOptions};
use std::sync::Arc;
use welte_device::{Demand, Device, DeviceId, Plan};
use welte_table::MOST_RANKS;

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
    let lacking = (0..demands.len())
        .rev()
        .filter(|at| lack(&demands[*at]) > 0);
    let Some(at) = lacking.max_by_key(|at| lack(&demands[*at])) else {
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
        dealt: None,
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
    fewest(options.cpu_experts.saturating_add(1), layers, demands)
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
        if fits_near(middle) {
            most = middle
        } else {
            least = middle + 1
        }
    }
    let fits = demands(least)?.iter().all(|demand| lack(demand) == 0);
    fits.then_some(least)
}

/// Automatic sizes are multiples of this.
const POSITIONS: u32 = 1024;

/// The context and the caches of a plan with [`LoadOptions::fit_context`], and why they were chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FittedContext {
    /// The context of the model itself.
    pub own: u32,
    /// The most positions of a sequence.
    pub context: u32,
    /// Positions in the caches, shared by all sequences.
    pub positions: u32,
    /// True if memory made either smaller than it would be otherwise.
    pub limited: bool,
}

impl FittedContext {
    /// True if memory made the context so short that unloading other models is worth it.
    pub fn is_cramped(&self) -> bool {
        self.context < self.own.min(8 * DEFAULT_CONTEXT)
    }
}

impl std::fmt::Display for FittedContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let FittedContext {
            own,
            context,
            positions,
            limited,
        } = self;
        write!(f, "context {context}")?;
        if context != own {
            write!(f, " (the model's own is {own})")?;
        }
        write!(f, ", caches for {positions} positions")?;
        if *limited {
            write!(f, "; memory allows no more")
        } else {
            Ok(())
        }
    }
}

/// Chooses the context and the size of the caches. `plan` plans a context with a number of positions in the caches.
///
/// The context is the one that the options name, else the model's own. The caches hold as many positions as the options
/// say. Otherwise they hold the whole context of every slot if the options name the context. If they do not, one context is
/// enough for all slots together, as long as each has as much as it would have by default. What exceeds the memory is cut:
/// first the caches, down to one context, then the context, down to the default one.
pub(crate) fn fitted_context(
    own: u32,
    options: &LoadOptions,
    device: &dyn Device,
    plan: impl Fn(u32, u32) -> Result<Plan, Error>,
) -> Result<FittedContext, Error> {
    let slots = options.slots.max(1);
    let (named, sized) = (options.context, options.cache_positions);
    let whole = match (named, sized) {
        (0, 0) => own,
        (0, sized) => own.min(sized),
        (named, 0) => named,
        (named, sized) => named.min(sized),
    };
    let least = whole.min(DEFAULT_CONTEXT);
    let wanted = match (named, sized) {
        (_, sized @ 1..) => sized,
        (0, _) => whole.max(slots.saturating_mul(least)),
        (named, _) => slots.saturating_mul(named),
    };
    let smallest = match sized {
        0 => least,
        sized => sized,
    };
    let base = device.demands(&plan(least, smallest)?);
    let fits = |context: u32, positions: u32| -> Result<bool, Error> {
        let demands = device.demands(&plan(context, positions)?);
        let mut pairs = base.iter().zip(&demands);
        Ok(pairs.all(|(base, demand)| {
            let have = base.have.into_iter().chain(options.fit_within).min();
            let have = have.unwrap_or(u64::MAX);
            let others = match base.device == device.info().id {
                true => options.encoder,
                false => 0,
            };
            let caches = demand.need.saturating_sub(base.need);
            let room = have.saturating_sub(base.need.saturating_add(others)) as f64;
            caches == 0 || caches as f64 <= room * share(base.device, options)
        }))
    };
    let found = |context, positions| FittedContext {
        own,
        context,
        positions,
        limited: (context, positions) != (whole, wanted),
    };
    if fits(whole, wanted)? {
        return Ok(found(whole, wanted));
    }
    if sized == 0 && wanted > whole && fits(whole, whole)? {
        let positions = longest(whole, wanted, |positions| fits(whole, positions))?;
        return Ok(found(whole, positions));
    }
    if named > 0 {
        // The caller has decided. If it does not fit at all, the check of the memory says so.
        return Ok(found(whole, if sized == 0 { whole } else { sized }));
    }
    let context = longest(least, whole, |context| {
        fits(context, if sized == 0 { context } else { sized })
    })?;
    Ok(found(context, if sized == 0 { context } else { sized }))
}

/// The share of the memory beside everything else that caches take, if nobody has said how large they are. The CPU's memory
/// is there for other programs too.
fn share(device: DeviceId, options: &LoadOptions) -> f64 {
    match device.kind {
        _ if options.fit_with_others => 0.5,
        "cpu" => 0.5,
        _ => 0.9,
    }
}

/// The largest of `least`, which counts as fitting, and the multiples up to `most` that fits.
fn longest(least: u32, most: u32, fits: impl Fn(u32) -> Result<bool, Error>) -> Result<u32, Error> {
    let (mut low, mut high) = (least / POSITIONS, most / POSITIONS);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle * POSITIONS)? {
            low = middle
        } else {
            high = middle - 1
        }
    }
    Ok((low * POSITIONS).max(least))
}

/// The device as the options want it: as the first of several ranks, with the experts of some layers on the CPU, or as it is.
pub(crate) fn placed(
    device: Arc<dyn Device>,
    options: &LoadOptions,
) -> Result<Arc<dyn Device>, Error> {
    if options.ranks > 1 {
        let id = device.info().id;
        drop(device);
        let numbers: Vec<u32> = (id.ordinal..).take(options.ranks as usize).collect();
        return ranks(id.kind, &numbers, options);
    }
    // A model that one device lacks the memory for may still be dealt.
    let may_be_dealt = || {
        let mut kinds = KINDS
            .iter()
            .filter(|kind| kind.name == device.info().id.kind);
        options.device == DeviceChoice::Auto && kinds.any(|kind| !kind.counts_of_ranks().is_empty())
    };
    if options.exchange.is_some() && !may_be_dealt() {
        let why = "--exchange is for a model on several GPUs (--gpus N)".to_string();
        return Err(Error::Ranks { why });
    }
    match options.cpu_experts {
        0 => Ok(device),
        layers => with_experts_on_cpu(device, layers, &options.for_device()),
    }
}

/// Plans a model that one device of a kind lacks the memory for on several, on as few as have it. The error is that of the one device,
/// with what the last attempt needed.
pub(crate) fn on_more_ranks<T>(
    kind: &Kind,
    mut why: Error,
    options: &LoadOptions,
    plan_on: impl Fn(Arc<dyn Device>) -> Result<T, Error>,
) -> Result<T, Error> {
    let alone = options.ranks <= 1 && options.cpu_experts == 0;
    let Error::Memory { dealt, .. } = &mut why else {
        return Err(why);
    };
    for ranks in kind.counts_of_ranks().into_iter().filter(|_| alone) {
        let numbers: Vec<u32> = (0..ranks).collect();
        match dealt_to(kind.name, &numbers, options).and_then(&plan_on) {
            Ok(planned) => return Ok(planned),
            Err(Error::Memory { need, have, .. }) => {
                *dealt = Some(DealtMemory { ranks, need, have })
            }
            // A model that cannot be dealt lacks the memory of one.
            Err(_) => {}
        }
    }
    Err(why)
}

/// A device of these ranks.
fn dealt_to(kind: &str, numbers: &[u32], options: &LoadOptions) -> Result<Arc<dyn Device>, Error> {
    let least = options.least_dealt;
    open_ranks(
        kind,
        numbers,
        &options.for_device(),
        options.exchange,
        least,
    )
}

/// The ranks of a model on devices of these numbers.
pub(crate) fn ranks(
    kind: &str,
    numbers: &[u32],
    options: &LoadOptions,
) -> Result<Arc<dyn Device>, Error> {
    let refuse = |why: String| Err(Error::Ranks { why });
    if options.cpu_experts > 0 {
        return refuse("experts on the CPU need a model on one device".to_string());
    }
    let (given, named) = (options.ranks.max(1), numbers.len() as u32);
    if named > MOST_RANKS || given > MOST_RANKS {
        return refuse(format!("there may be {MOST_RANKS}"));
    }
    if given > 1 && given != named {
        return refuse(format!(
            "{named} devices are named, and {given} ranks are asked for"
        ));
    }
    dealt_to(kind, numbers, options)
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

    #[test]
    fn the_longest_that_fits_is_found() {
        let found =
            |least, most, limit| longest(least, most, |positions| Ok(positions <= limit)).unwrap();
        for (least, most, limit, expected) in [
            (4096, 65_536, 10_000, 9216),
            (4096, 65_536, 10_240, 10_240),
            (4096, 65_536, 65_536, 65_536),
            (4096, 65_536, 64_511, 62 * 1024),
            (4096, 65_536, 0, 4096),
            (4096, 5000, 5000, 4096),
            (1000, 5000, 3000, 2048),
            (1000, 5000, 0, 1000),
            (4096, 4096, 0, 4096),
        ] {
            assert_eq!(
                found(least, most, limit),
                expected,
                "{least} {most} {limit}"
            );
        }
    }

    #[test]
    fn a_short_context_is_cramped_and_says_why() {
        let fitted = |own, context, limited| FittedContext {
            own,
            context,
            positions: 2 * context,
            limited,
        };
        let eight = 8 * DEFAULT_CONTEXT;
        for (own, context, cramped) in [
            (10 * DEFAULT_CONTEXT, eight - 1, true),
            (10 * DEFAULT_CONTEXT, eight, false),
            (512, 512, false),
            (512, 511, true),
        ] {
            assert_eq!(
                fitted(own, context, true).is_cramped(),
                cramped,
                "{own} {context}"
            );
        }
        let said = |own, limited| fitted(own, 512, limited).to_string();
        assert_eq!(said(512, false), "context 512, caches for 1024 positions");
        assert_eq!(
            said(1024, true),
            "context 512 (the model's own is 1024), caches for 1024 positions; memory allows no more"
        );
    }

    #[test]
    fn caches_leave_memory_to_others() {
        let kind = |name| DeviceId {
            kind: name,
            ..DeviceId::only("cpu")
        };
        let plain = LoadOptions::default();
        let with_others = LoadOptions {
            fit_with_others: true,
            ..LoadOptions::default()
        };
        assert_eq!(
            (share(kind("cpu"), &plain), share(kind("cuda"), &plain)),
            (0.5, 0.9)
        );
        assert_eq!(share(kind("cuda"), &with_others), 0.5);
        let demand = |need, have| Demand {
            device: kind("cpu"),
            need,
            have,
        };
        let lacking = [(5, Some(4)), (4, Some(4)), (3, Some(4)), (5, None)];
        assert_eq!(
            lacking.map(|(need, have)| lack(&demand(need, have))),
            [1, 0, 0, 0]
        );
    }
}
