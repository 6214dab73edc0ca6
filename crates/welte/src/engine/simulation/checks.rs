//! What holds after every turn.

use super::world::World;
use crate::engine::scheduler::{Audit, Audited, Scheduler};
use std::cmp::Reverse;
use web_time::Duration;

/// What the last turns have shown.
#[derive(Default)]
pub(super) struct Checks {
    before: Audit,
    /// Requests that nobody wanted when the turn began.
    gone: Vec<u64>,
    /// The request that has what it needs and does not run, and for how many turns.
    starving: Option<(u64, usize)>,
    /// Requests that were preempted since one has ended.
    preempted: Vec<u64>,
    /// Calls that had failed when the turn began.
    faults: usize,
    /// The last turn had a piece of an encoder's pass.
    encoded: bool,
}

/// Small is urgent.
fn order(request: &Audited) -> (Reverse<i32>, u64) {
    (Reverse(request.priority), request.number)
}

/// True if one of these may compute what the request waits for.
fn may_share(running: &[Audited], request: &Audited) -> bool {
    running.iter().any(|other| other.first == request.first)
}

/// A turn in one line.
fn line(audit: &Audit) -> String {
    let one = |one: &Audited| {
        let filling = if one.is_filling { "+" } else { "" };
        format!("{}{filling}", one.number)
    };
    let wait = |one: &Audited| {
        let back = if one.set_back { "*" } else { "" };
        format!("{}{back}:{}:{:?}", one.number, one.priority, one.pages)
    };
    let running: Vec<String> = audit.running.iter().map(one).collect();
    let waiting: Vec<String> = audit.waiting.iter().map(wait).collect();
    format!(
        "runs {running:?} waits {waiting:?} free {:?}, {} slots; ahead {}, piece {}",
        audit.free, audit.free_slots, audit.rows_ahead, audit.piece
    )
}

impl Checks {
    /// A turn is about to begin.
    pub(super) fn before(&mut self, world: &World, scheduler: &Scheduler) {
        self.before = scheduler.audit();
        let waits = |number: u64| self.before.waiting.iter().any(|w| w.number == number);
        self.gone = world.clients.lock().unwrap().gone();
        let deadlines = world.clients.lock().unwrap().deadlines();
        let waiting = deadlines.into_iter().filter(|(number, _)| waits(*number));
        world.begin_turn(waiting.collect());
        self.faults = world.inner().faults;
    }

    /// A turn has ended.
    pub(super) fn after(&mut self, world: &World, scheduler: &Scheduler) -> Result<(), String> {
        let after = scheduler.audit();
        if super::traces() {
            let now = world.clock.now() - world.start;
            println!("{now:?} {}", line(&after));
        }
        scheduler.adds_up(world.shape.slots as usize)?;
        self.order(world, &after)?;
        self.preemption(&after)?;
        self.returns(world, &after)?;
        self.unwanted(&after)?;
        self.deadlines(world, &after)?;
        self.pieces(world, &after)?;
        self.encoding(world, &after)?;
        self.starvation(&after)
    }

    /// The most urgent come first: nobody who waited all the time is more urgent than somebody who was admitted.
    fn order(&self, world: &World, after: &Audit) -> Result<(), String> {
        let firsts = world.clients.lock().unwrap().first_tokens();
        // Somebody may have computed its beginning in this turn, or still does.
        let may_share = |one: &Audited| {
            let mut others = firsts
                .iter()
                .filter(|(number, first)| *number != one.number && *first == one.first);
            others.any(|(number, _)| after.waiting.iter().all(|w| w.number != *number))
        };
        let waited = |all: &[Audited], number: u64| all.iter().any(|one| one.number == number);
        let admitted = after.running.iter();
        let admitted = admitted.filter(|one| waited(&self.before.waiting, one.number));
        for one in admitted {
            let passed_over = after.waiting.iter().find(|other| {
                waited(&self.before.waiting, other.number)
                    && order(other) < order(one)
                    && !may_share(other)
            });
            if let Some(other) = passed_over {
                return Err(format!("{one:?} was admitted before {other:?}"));
            }
        }
        Ok(())
    }

    /// The least urgent gives its pages to the others.
    fn preemption(&self, after: &Audit) -> Result<(), String> {
        let ran = |number: u64| self.before.running.iter().any(|one| one.number == number);
        for one in after.waiting.iter().filter(|one| ran(one.number)) {
            let mut others = after.running.iter().filter(|other| ran(other.number));
            if let Some(other) = others.find(|other| order(other) > order(one)) {
                return Err(format!("{one:?} was preempted before {other:?}"));
            }
        }
        Ok(())
    }

    /// Who was preempted waits until another one has ended, or would give its pages back at once.
    fn returns(&mut self, world: &World, after: &Audit) -> Result<(), String> {
        let is_in = |all: &[Audited], number: u64| all.iter().any(|one| one.number == number);
        let before = &self.before.running;
        let stays = |number: u64| is_in(&after.running, number) || is_in(&after.waiting, number);
        let ended = before.iter().any(|one| !stays(one.number));
        if ended || before.is_empty() || world.inner().faults > self.faults {
            self.preempted.clear();
            return Ok(());
        }
        if let Some(back) = self
            .preempted
            .iter()
            .find(|one| is_in(&after.running, **one))
        {
            return Err(format!(
                "request number {back} is back, and nobody has ended"
            ));
        }
        let new = after.waiting.iter().map(|one| one.number);
        self.preempted
            .extend(new.filter(|number| is_in(before, *number)));
        Ok(())
    }

    /// What nobody wanted when the turn began has ended.
    fn unwanted(&self, after: &Audit) -> Result<(), String> {
        let mut all = after.running.iter().chain(&after.waiting);
        match all.find(|one| self.gone.contains(&one.number)) {
            Some(one) => Err(format!("{one:?} goes on, and nobody wants it")),
            None => Ok(()),
        }
    }

    /// What was late when the turn began has ended, and a chain ends when somebody who waits becomes late or may get a slot.
    fn deadlines(&self, world: &World, after: &Audit) -> Result<(), String> {
        let mut all = after.running.iter().chain(&after.waiting);
        let before = || self.before.running.iter().chain(&self.before.waiting);
        let kept = all.find(|one| before().any(|b| b.is_late && b.number == one.number));
        if let Some(kept) = kept {
            return Err(format!("{kept:?} goes on after its deadline"));
        }
        let inner = world.inner();
        let waited = |one: &&Audited| self.before.waiting.iter().any(|b| b.number == one.number);
        if let Some(one) = after
            .waiting
            .iter()
            .find(waited)
            .filter(|_| inner.late_steps > 0)
        {
            return Err(format!(
                "a chain went on after a sequence left it, and {one:?} waits"
            ));
        }
        let mut waiting = after.waiting.iter();
        match waiting.find(|w| inner.missed.contains(&w.number)) {
            Some(late) => Err(format!("a chain went on although {late:?} was late")),
            None => Ok(()),
        }
    }

    /// Sequences that decoded during the whole turn.
    fn decoding(&self, after: &Audit) -> usize {
        let decoded = self.before.running.iter().filter(|one| {
            let still = after
                .running
                .iter()
                .find(|other| other.number == one.number);
            !one.is_filling && still.is_some_and(|still| !still.is_filling)
        });
        decoded.count()
    }

    /// A piece of an encoder's pass shares its turn with a step of those who decode, and takes no longer than that, unless the device
    /// cannot cut it. Prompts that wait have every other turn.
    fn encoding(&mut self, world: &World, after: &Audit) -> Result<(), String> {
        let inner = world.inner();
        let had = std::mem::replace(&mut self.encoded, !inner.encoded.is_empty());
        let Some(piece) = inner.encoded.first() else {
            return Ok(());
        };
        if inner.encoded.len() > 1 {
            return Err("an encoder has two pieces in a turn".into());
        }
        let fills = |one: &&Audited| one.is_filling && !one.restores;
        let mut filling = self.before.running.iter().filter(fills);
        let still = |one: &Audited| {
            let mut after = after.running.iter().filter(fills);
            after.any(|other| other.number == one.number)
        };
        if let Some(one) = filling.find(|one| still(one)).filter(|_| had) {
            return Err(format!(
                "two pieces of an encoder before a prompt of {one:?}"
            ));
        }
        let rows = world.shape.slots.max(world.shape.decode_rows) as usize;
        let most = if self.decoding(after) > 0 {
            world.times(rows, 0)[0]
        } else {
            Duration::from_millis(51)
        };
        let most = if piece.first {
            piece.least
        } else {
            most.max(piece.least)
        };
        if piece.took > most {
            return Err(format!("{piece:?} may take {most:?}"));
        }
        if inner.chained > 1 {
            let steps = inner.chained;
            return Err(format!("a pass waits for a chain of {steps} steps"));
        }
        if self.decoding(after) > 0 && inner.decoded == 0 && inner.faults == self.faults {
            return Err("nobody decodes between two pieces of encoders' passes".into());
        }
        Ok(())
    }

    /// A piece of a prompt beside a stream is as large as the pace allows, and takes no longer than a few decode steps.
    fn pieces(&self, world: &World, after: &Audit) -> Result<(), String> {
        let (rows, took) = world.inner().piece;
        let decoding = self.decoding(after);
        if decoding == 0 {
            return Ok(());
        }
        // A text to embed follows the piece of a prompt, which the pace has measured by then.
        let allowed = self.before.piece.max(after.piece);
        if rows > allowed {
            return Err(format!(
                "a piece of {rows} rows beside {decoding} streams; the pace allows {allowed}"
            ));
        }
        // The longest is for eight requests that wait for each stream, measured with other streams.
        let [decode, least] = world.times(world.shape.slots as usize, 16);
        let most = decode.mul_f64(6.0) + least;
        if took > most {
            Err(format!(
                "a piece of {rows} rows takes {took:?} beside steps of {decode:?}"
            ))
        } else {
            Ok(())
        }
    }

    /// Whoever has what it needs is admitted as soon as the prompts before it are computed.
    fn starvation(&mut self, after: &Audit) -> Result<(), String> {
        // Nobody overtakes a more urgent request that lacks pages.
        let best = after.waiting.iter().min_by_key(|w| order(w));
        let best = best.filter(|best| !may_share(&after.running, best));
        let fits = |one: &&Audited| one.pages.iter().zip(&after.free).all(|(n, free)| n <= free);
        let restores = after.running.iter().any(|one| one.restores);
        // What was preempted comes back when somebody ends, or it would be preempted again. The prompts before it come first.
        let admits = after.free_slots > 0 && after.rows_ahead < after.piece && !restores;
        let best = best.filter(|best| admits && !best.set_back).filter(fits);
        let ran = |one: &Audited| self.before.running.iter().any(|b| b.number == one.number);
        let others_came = !after.running.iter().all(ran);
        self.starving = best.map(|best| match self.starving {
            Some((number, turns)) if number == best.number && !others_came => (number, turns + 1),
            _ => (best.number, 0),
        });
        match self.starving {
            Some((number, turns)) if turns > 2 => Err(format!(
                "request number {number} could run, and has waited for {turns} turns"
            )),
            _ => Ok(()),
        }
    }

    /// The figures equal what the device did, unless a call failed in between.
    pub(super) fn at_the_end(&self, world: &World, scheduler: &Scheduler) -> Result<(), String> {
        let (audit, inner) = (scheduler.audit(), world.inner());
        let (computed, chosen) = (audit.prompt_tokens, audit.generated_tokens);
        if inner.faults > 0 {
            return Ok(());
        }
        if computed != inner.computed {
            return Err(format!(
                "{computed} tokens of prompts are reported, {} were computed",
                inner.computed
            ));
        }
        // Guesses after the end of a text are chosen in vain.
        let in_vain: usize = inner.seen.values().map(|seen| seen.drafted).sum();
        let reported = chosen..=chosen + in_vain as u64;
        if reported.contains(&inner.chosen) {
            Ok(())
        } else {
            Err(format!(
                "{chosen} tokens are reported, {} were chosen",
                inner.chosen
            ))
        }
    }
}
