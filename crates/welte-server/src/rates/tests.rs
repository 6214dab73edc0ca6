use super::*;

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn totals(prompt: u64, generated: u64, steps: u64) -> Snapshot {
    let mut snapshot = Snapshot::default();
    (snapshot.prompt_tokens, snapshot.generated_tokens) = (prompt, generated);
    snapshot.decode_steps = steps;
    snapshot
}

/// A slot of a request.
fn slot(request: u64, position: usize) -> SlotSnapshot {
    let mut slot = SlotSnapshot::default();
    (slot.request, slot.position) = (Some(request), position);
    slot
}

/// Rates look back one second where there is a look so old, and no longer than five.
#[test]
fn rates_look_back_a_second() {
    let begun = Instant::now();
    let mut history = History::default();
    let mut look = |after: f64| {
        let mut snapshot = totals(0, 0, 0);
        snapshot.slots = vec![slot(7, 3), SlotSnapshot::default()];
        let found = history.add(&snapshot, begun + seconds(after))?;
        assert_eq!(found.positions, [(7, 3)]);
        Some((found.at - begun).as_millis())
    };
    assert_eq!(look(0.0), None);
    assert_eq!(look(0.25), Some(0));
    assert_eq!(look(1.0), Some(0));
    assert_eq!(look(1.125), Some(0));
    assert_eq!(look(1.25), Some(250));
    assert_eq!(look(2.125), Some(1125));
    assert_eq!(look(7.125), Some(2125));
    assert_eq!(look(13.125), None);
    assert_eq!(look(13.25), Some(13125));
}

#[test]
fn rates_are_changes_per_second() {
    let begun = Instant::now();
    let moment = |prompt, generated, steps| Moment {
        at: begun,
        prompt,
        generated,
        steps,
        positions: Vec::new(),
    };
    let now = begun + seconds(2.0);
    let of = |rates: Rates| {
        let Rates {
            prompt,
            decode,
            rows,
            steps,
            seconds,
        } = rates;
        [prompt, decode, rows, steps, seconds]
    };
    let snapshot = totals(400, 60, 15);
    let rates = Rates::since(Some(&moment(100, 20, 5)), &snapshot, now);
    assert_eq!(of(rates), [150.0, 20.0, 4.0, 5.0, 2.0]);
    // Nothing was decoded, or the engine has begun anew.
    let rates = Rates::since(Some(&moment(100, 60, 15)), &snapshot, now);
    assert_eq!(of(rates), [150.0, 0.0, 0.0, 0.0, 2.0]);
    let rates = Rates::since(Some(&moment(500, 70, 20)), &snapshot, now);
    assert_eq!(of(rates), [0.0, 0.0, 0.0, 0.0, 2.0]);
    assert_eq!(of(Rates::since(None, &snapshot, now)), [0.0; 5]);
}

#[test]
fn a_request_has_a_speed_while_it_decodes() {
    let mut one = slot(7, 30);
    assert_eq!(speed(&one, &[(6, 1), (7, 10)], 2.0), Some(10.0));
    assert_eq!(speed(&one, &[(6, 1)], 2.0), None);
    assert_eq!(speed(&one, &[(7, 10)], 0.0), None);
    // It was preempted: its positions are computed again.
    assert_eq!(speed(&one, &[(7, 40)], 2.0), Some(0.0));
    one.in_prompt = true;
    assert_eq!(speed(&one, &[(7, 10)], 2.0), None);
    assert_eq!(
        speed(&SlotSnapshot::default(), &[(0, 0), (7, 1)], 2.0),
        None
    );
}

#[test]
fn the_floor_is_the_time_to_read_the_weights() {
    let share = |steps, bandwidth, in_cache| floor_share(steps, 50.0, bandwidth, in_cache);
    assert_eq!(share(4.0, Some(400.0), false), Some(0.5));
    assert_eq!(share(0.0, Some(400.0), false), None);
    assert_eq!(share(4.0, None, false), None);
    assert_eq!(share(4.0, Some(400.0), true), None);
    // Nothing is read faster than memory gives it.
    assert_eq!(share(8.0, Some(400.0), false), Some(1.0));
    assert_eq!(share(8.5, Some(400.0), false), None);
    assert_eq!(share(f64::INFINITY, Some(400.0), false), None);
}
