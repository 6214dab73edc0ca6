//! A stepper: one text in the caches of a context of its own, extended step by step. For measurements and tools.

use crate::{Error, Model};
use welte_device::{
    ChainStart, Choice, Context, Control, Pick, Place, Role, SlotAdapter, SlotState, Stage, Step,
    StepOptions, Want,
};
use welte_table::{BufferId, CacheKind, Command, Format, Row, Sampling};

/// The slot of the stepper's text: a stepper has one.
const SLOT: u32 = 0;

/// One text in the caches of a context of its own. Each method is one or a few calls of the device, so benchmarks,
/// profiles and scores use it. [`Session`](crate::Session) generates text.
pub struct Stepper {
    model: Model,
    device: Box<dyn Context>,
    /// The tokens in the caches, by position. Its capacity is the context, so it never grows.
    tokens: Vec<u32>,
    step: Step,
    /// Those of the model, if they are in use.
    adapters: Vec<SlotAdapter>,
}

impl Model {
    /// A stepper with caches of its own.
    pub fn stepper(&self) -> Result<Stepper, Error> {
        Stepper::new(self)
    }
}

impl Stepper {
    pub(crate) fn new(model: &Model) -> Result<Stepper, Error> {
        if model.is_encoder() {
            let origin = model.origin().to_string();
            return Err(Error::NoText { origin });
        }
        Ok(Stepper {
            model: model.clone(),
            device: model.inner.loaded.context()?,
            tokens: Vec::with_capacity(model.context()),
            step: Step::with_room(model.program().most_rows() as usize),
            adapters: Vec::new(),
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The device's side of the stepper, for profiling and tools. Steps and chains that a caller runs on it directly
    /// change the caches without the stepper's knowledge.
    pub fn context(&mut self) -> &mut dyn Context {
        self.device.as_mut()
    }

    /// The tokens in the caches.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Uses the adapters that the model was loaded with from now on ([`LoadOptions::adapters`](crate::LoadOptions::adapters)): the
    /// first for the text, and all in turn in [`Stepper::chain_together`].
    pub fn use_adapters(&mut self) -> Result<(), Error> {
        let model = self.model.clone();
        for (place, (source, content)) in (0..).zip(&model.inner.adapters) {
            content.write(self.device.as_mut(), place)?;
            let scale = source.scale;
            self.adapters.push(SlotAdapter { place, scale });
        }
        let state = self.state_of(SLOT);
        Ok(self.device.set_slot(SLOT, &state)?)
    }

    fn state_of(&self, slot: u32) -> SlotState<'static> {
        let count = self.adapters.len().max(1);
        SlotState {
            adapter: self.adapters.get(slot as usize % count).copied(),
            ..SlotState::default()
        }
    }

    /// Forgets all but the first `length` tokens.
    pub fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.tokens.clear();
    }

    /// Starts anew as if these tokens had been fed, with random numbers in the caches. This is for timing at a depth
    /// that would take long to reach. The logits that follow are meaningless.
    pub fn fill_at_random(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.clear();
        self.check(tokens)?;
        let model = self.model.clone();
        for cache in &model.program().caches {
            let format = match cache.kind {
                CacheKind::Attention { format, .. } => format,
                CacheKind::Recurrent { .. } => Format::F32,
            };
            self.fill_buffer_at_random(cache.buffer, format)?;
        }
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Repeats 64 Ki random numbers of this format over a whole buffer.
    fn fill_buffer_at_random(&mut self, buffer: BufferId, format: Format) -> Result<(), Error> {
        let mut seed = 1u32;
        let values: Vec<f32> = (0..1 << 16)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 8) as f32 / (1u32 << 23) as f32 - 1.0
            })
            .collect();
        let mut pattern = vec![0; format.bytes(values.len()).unwrap_or(0)];
        welte_formats::quant::encode(format, &values, &mut pattern);
        let buffers = &self.model.program().buffers;
        let size = buffers.get(buffer as usize).map_or(0, |spec| spec.bytes);
        let bytes: Vec<u8> = pattern.into_iter().cycle().take(size as usize).collect();
        Ok(self.device.write_buffer(buffer, &bytes)?)
    }

    /// Appends tokens and computes the logits that follow the last one. Allocates nothing.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.check(tokens)?;
        let prompt = self.model.inner.prompt;
        let most = self.model.rows_of(prompt);
        let Some(last) = tokens.len().checked_sub(1) else {
            return Ok(&[]);
        };
        let (pieces, last_piece) = tokens.split_at(last / most * most);
        for piece in pieces.chunks(most) {
            self.set_rows(Role::Prompt, piece);
            self.device.step(&self.step, StepOptions::default())?;
            self.tokens.extend_from_slice(piece);
        }
        self.set_rows(Role::Prompt, last_piece);
        self.step.picks.push(Pick {
            row: last_piece.len() as u32 - 1,
            want: Want::Values,
        });
        let logits = self.device.step(&self.step, StepOptions::default())?;
        self.tokens.extend_from_slice(last_piece);
        Ok(logits)
    }

    /// Appends the tokens of one prompt step, command by command: `see` gets each command before it runs, with the context that it
    /// can read the command's inputs from.
    pub fn feed_watched(
        &mut self,
        tokens: &[u32],
        see: &mut dyn FnMut(&Command, &mut dyn Context) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.check(tokens)?;
        let model = self.model.clone();
        let prompt = &model.program().passes[model.inner.prompt];
        self.set_rows(Role::Prompt, tokens);
        let device = self.device.as_mut();
        let step = &self.step;
        device.step(step, StepOptions::stage(Stage::Begin))?;
        for (at, command) in prompt.commands.iter().enumerate() {
            see(command, device)?;
            let this = Place::before(at)..Place::before(at + 1);
            device.step(step, StepOptions::stage(Stage::Run(this)))?;
        }
        device.step(step, StepOptions::stage(Stage::End))?;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Appends tokens and shows the logits that follow each: `see(position, logits)`. Uses the decode pass.
    pub fn score(
        &mut self,
        tokens: &[u32],
        see: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.check(tokens)?;
        let decode = self.model.inner.decode;
        let vocab = self.model.vocab() as usize;
        for piece in tokens.chunks(self.model.rows_of(decode)) {
            let first = self.tokens.len();
            self.set_rows(Role::Generated, piece);
            let logits = self.device.step(&self.step, StepOptions::default())?;
            for (i, row) in logits.chunks_exact(vocab).enumerate() {
                see(first + i, row);
            }
            self.tokens.extend_from_slice(piece);
        }
        Ok(())
    }

    /// Sets how the next tokens are chosen: the sampling parameters, what is added to the logits of some tokens, and the
    /// tokens that end a chain. Penalties look back over the tokens in the caches.
    pub fn set_sampling(
        &mut self,
        sampling: &Sampling,
        bias: &[(u32, f32)],
        ends: &[u32],
    ) -> Result<(), Error> {
        let state = SlotState {
            sampling: *sampling,
            bias,
            history: &self.tokens,
            ends,
            ..self.state_of(SLOT)
        };
        Ok(self.device.set_slot(SLOT, &state)?)
    }

    /// Samples the token that follows the last one fed, from the logits of that step.
    pub fn sample(&mut self) -> Result<u32, Error> {
        let choice = Choice {
            output: 0,
            slot: SLOT,
            position: self.tokens.len() as u32,
            draft: None,
        };
        let mut token = [0];
        self.device.sample(&[choice], &mut token)?;
        Ok(token[0])
    }

    /// Feeds `start`, samples the next token, feeds that one, and so on: `n` tokens, or fewer if an end token comes, or if
    /// `emit` returns false. Returns how many were emitted. The last one is not yet in the caches.
    /// Allocates nothing.
    pub fn chain(
        &mut self,
        start: u32,
        n: usize,
        emit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<usize, Error> {
        self.check(&[start])?;
        let room = self.model.context() - self.tokens.len();
        let steps = n.min(room).min(self.model.inner.max_chain);
        if steps == 0 {
            return Ok(0);
        }
        let start = ChainStart {
            slot: SLOT,
            token: start,
            position: self.tokens.len() as u32,
            steps: steps as u32,
            shift: 0,
        };
        let tokens = &mut self.tokens;
        let (mut fed, mut count) = (start.token, 0);
        self.device
            .chain(&[start], &Control::default(), &mut |emitted| {
                tokens.push(fed);
                fed = emitted.token;
                count += 1;
                emit(emitted.token)
            })?;
        Ok(count)
    }

    /// Decodes up to `n` tokens of each of the first `slots` slots together, all from the end of the stepper's text on: for timing after
    /// [`Stepper::fill_at_random`]. The tokens mean nothing and are not kept. Returns their number.
    pub fn chain_together(&mut self, slots: u32, n: usize) -> Result<u32, Error> {
        let room = self.model.context() - self.tokens.len();
        let steps = n.min(room).min(self.model.inner.max_chain) as u32;
        let start = |slot| ChainStart {
            slot,
            token: slot % self.model.vocab().max(1),
            position: self.tokens.len() as u32,
            steps,
            shift: 0,
        };
        let starts: Vec<ChainStart> = (0..slots).map(start).collect();
        for slot in 0..slots {
            let state = self.state_of(slot);
            self.device.set_slot(slot, &state)?;
        }
        let mut made = 0;
        let mut count = |_| {
            made += 1;
            true
        };
        if steps > 0 {
            self.device
                .chain(&starts, &Control::default(), &mut count)?;
        }
        Ok(made)
    }

    fn set_rows(&mut self, role: Role, piece: &[u32]) {
        let first = self.tokens.len() as u32;
        let rows = (first..).zip(piece);
        self.step.clear();
        let rows = rows.map(|(position, token)| Row::new(*token, position, SLOT));
        self.step.add(role, rows);
    }

    /// Refuses tokens that do not fit in the context or are not in the vocabulary.
    fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        let vocab = self.model.vocab();
        if let Some(&token) = tokens.iter().find(|&&t| t >= vocab) {
            return Err(Error::Token { token, vocab });
        }
        let (prompt, context) = (self.tokens.len() + tokens.len(), self.model.context());
        if prompt > context {
            return Err(Error::ContextFull { prompt, context });
        }
        Ok(())
    }
}
