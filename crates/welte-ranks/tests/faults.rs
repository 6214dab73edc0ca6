//! Ranks that fail in the middle of a chain: the error names them, nobody waits for ever, and the next chain runs.

mod faulty;

use faulty::{Fault, Faulty, Plot};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use welte_conformance::model::Model;
use welte_conformance::program;
use welte_device::{ChainStart, Context, Control, Device, Error, Seat};

/// Longer than a busy machine takes to report a fault.
const LONG: Duration = Duration::from_secs(2);
/// Shorter than a rank that is late sleeps.
const SHORT: Duration = Duration::from_millis(300);

/// A small model on three ranks, which wait this long for each other.
fn context(plot: &Plot, patience: Duration) -> Box<dyn Context> {
    let device = |_| -> Arc<dyn Device> {
        Arc::new(Faulty {
            inner: welte_reference::device(),
            plot: plot.clone(),
        })
    };
    let ranks = welte_ranks::device_by((0..3).map(device).collect(), 0, patience);
    let (program, checkpoint) = program::make_fine(&Model::small(3));
    let plan = ranks.plan(Arc::new(program)).unwrap();
    ranks
        .load(plan, &checkpoint, &mut |_| {})
        .unwrap()
        .context()
        .unwrap()
}

/// A chain of eight tokens; `seen` may act at each of them.
fn chain(context: &mut dyn Context, mut seen: impl FnMut(usize)) -> Result<Vec<u32>, Error> {
    let start = ChainStart {
        slot: 0,
        token: 1,
        position: 0,
        steps: 8,
        shift: 0,
    };
    let mut tokens = Vec::new();
    context.chain(&[start], &Control::default(), &mut |emitted| {
        tokens.push(emitted.token);
        seen(tokens.len());
        true
    })?;
    Ok(tokens)
}

#[test]
fn a_rank_that_fails_ends_the_chain_with_its_name() {
    let plot = Plot::default();
    let mut context = context(&plot, LONG);
    let want = chain(&mut *context, |_| {}).unwrap();
    assert_eq!(want.len(), 8);
    for (fault, words) in [
        (Fault::Fails, "rank 1 of 3: reference: no power"),
        (Fault::Panics, "rank 1 of 3: it panicked"),
        (Fault::StopsEarly, "rank 1 of 3: the others waited"),
        (Fault::Blames(0), "rank 2 of 3: the others waited"),
        (Fault::Blames(1), "rank 2 of 3: the others waited"),
    ] {
        *plot.fault.lock().unwrap() = Some(fault);
        let begun = Instant::now();
        let error = chain(&mut *context, |_| {}).unwrap_err();
        assert!(matches!(error, Error::Rank { ranks: 3, .. }), "{error}");
        assert!(error.to_string().starts_with(words), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(20));
        // The next one runs as if nothing had been.
        assert_eq!(chain(&mut *context, |_| {}).unwrap(), want);
    }
}

#[test]
fn a_rank_stopped_in_mid_chain_ends_it() {
    let plot = Plot::default();
    let mut context = context(&plot, LONG);
    let want = chain(&mut *context, |_| {}).unwrap();
    let mut seats = plot.seats.lock().unwrap().clone();
    seats.sort_by_key(Seat::rank);
    for (rank, seat) in seats.iter().enumerate() {
        let error = chain(&mut *context, |token| {
            if token == 3 {
                seat.fail("the exchange failed");
            }
        });
        let error = error.unwrap_err().to_string();
        assert_eq!(error, format!("rank {rank} of 3: the exchange failed"));
        assert_eq!(chain(&mut *context, |_| {}).unwrap(), want);
    }
}

/// A rank that is late is lost if it does not come back; then every call says so at once.
#[test]
fn a_lost_rank_is_waited_for_once() {
    let plot = Plot::default();
    let mut context = context(&plot, SHORT);
    *plot.fault.lock().unwrap() = Some(Fault::Sleeps(900));
    let error = chain(&mut *context, |_| {}).unwrap_err().to_string();
    assert!(error.starts_with("rank 1 of 3: "), "{error}");
    let begun = Instant::now();
    let error = chain(&mut *context, |_| {}).unwrap_err().to_string();
    assert!(error.starts_with("rank 1 of 3: it is lost"), "{error}");
    assert!(begun.elapsed() < Duration::from_millis(200));
}

/// A lost rank may still write into the memory of the others, so all contexts stay until it comes back.
#[test]
fn a_lost_rank_keeps_all_contexts() {
    // Two lost ranks keep each other's.
    for fault in [Fault::Sleeps(2000), Fault::AllSleep(2000)] {
        let plot = Plot::default();
        let mut context = context(&plot, SHORT);
        *plot.fault.lock().unwrap() = Some(fault);
        chain(&mut *context, |_| {}).unwrap_err();
        *plot.fault.lock().unwrap() = None;
        drop(context);
        let contexts = || plot.contexts.load(Ordering::Acquire);
        assert_eq!(contexts(), 3);
        let begun = Instant::now();
        while contexts() > 0 && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(contexts(), 0);
    }
}
