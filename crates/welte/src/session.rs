//! A session: a text in the keys and values, and the ways to make it grow.

use crate::{DeviceSession, Error, Model};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use welte_table::{Row, Sampling, Shape};

/// Stops a session's generation from another thread (or a signal handler).
#[derive(Clone, Debug)]
pub struct CancelHandle(pub(crate) Arc<AtomicBool>);

impl CancelHandle {
    /// The generation that runs, or the next one, ends with [`StopReason::Cancelled`](crate::StopReason::Cancelled).
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True from [`cancel`](CancelHandle::cancel) until the generation has ended.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// One text in flight, with its own keys and values.
pub struct Session {
    pub(crate) model: Model,
    pub(crate) device: DeviceSession,
    /// The tokens whose keys and values are in the cache, by position. Its room is reserved: growing allocates nothing.
    pub(crate) tokens: Vec<u32>,
    pub(crate) cancel: Arc<AtomicBool>,
    rows: Vec<Row>,
}

impl Session {
    /// A session of a model, with everything allocated that it will need.
    pub fn new(model: &Model) -> Result<Session, Error> {
        let device = model.inner.device.session()?;
        let rows = model
            .program()
            .tables
            .iter()
            .map(|t| t.shape.rows())
            .max()
            .unwrap_or(1);
        Ok(Session {
            model: model.clone(),
            device,
            tokens: Vec::with_capacity(model.context()),
            cancel: Arc::default(),
            rows: Vec::with_capacity(rows as usize),
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The device's side of the session, for profiling and for asking what it allocated.
    pub fn device(&mut self) -> &mut DeviceSession {
        &mut self.device
    }

    /// A handle that stops generation from elsewhere.
    pub fn cancel_handle(&self) -> CancelHandle {
        CancelHandle(self.cancel.clone())
    }

    /// The tokens whose keys and values are in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Forgets all but the first `length` tokens.
    pub fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.tokens.clear();
    }

    /// Starts anew as if these tokens had been fed, with random numbers for keys and values: for timing at a depth that
    /// would take long to reach. What is computed from there means nothing. Only on the CPU.
    pub fn fill_at_random(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.clear();
        self.check(tokens)?;
        let format = self.model.program().kv.format;
        let mut seed = 1u32;
        let values: Vec<f32> = (0..1 << 16)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 8) as f32 / (1u32 << 23) as f32 - 1.0
            })
            .collect();
        let mut encoded = vec![0; format.bytes(values.len()).unwrap_or(0)];
        welte_formats::quant::encode(format, &values, &mut encoded);
        self.device.fill_cache(&encoded)?;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Appends tokens and computes the logits that follow the last one. Allocates nothing. Ends early, with what was
    /// done so far kept, when the session is cancelled (the logits are then empty).
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.check(tokens)?;
        let (prefill, most) = self
            .table(|s| matches!(s, Shape::Prefill(_)))
            .unwrap_or((0, 1));
        let decode = self
            .table(|s| matches!(s, Shape::Decode))
            .map(|(index, _)| index);
        let Some(last_chunk) = tokens.len().checked_sub(1).map(|last| last / most * most) else {
            return Ok(&[]);
        };
        for chunk in tokens[..last_chunk].chunks(most) {
            if self.cancel.load(Ordering::Relaxed) {
                return Ok(&[]);
            }
            self.set_rows(chunk);
            self.device.step(prefill, &self.rows)?;
            self.tokens.extend_from_slice(chunk);
        }
        if self.cancel.load(Ordering::Relaxed) {
            return Ok(&[]);
        }
        let chunk = &tokens[last_chunk..];
        let table = if chunk.len() == 1 {
            decode.unwrap_or(prefill)
        } else {
            prefill
        };
        self.set_rows(chunk);
        let logits = self.device.step(table, &self.rows)?;
        self.tokens.extend_from_slice(chunk);
        Ok(logits)
    }

    /// Appends tokens and shows the logits that follow each: `see(position, logits)`. Uses the batch table.
    pub fn score(
        &mut self,
        tokens: &[u32],
        see: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.check(tokens)?;
        let (table, most) = self
            .table(|s| matches!(s, Shape::Batch(_)))
            .unwrap_or((0, 1));
        let vocab = self.model.vocab() as usize;
        for chunk in tokens.chunks(most) {
            let first = self.tokens.len();
            self.set_rows(chunk);
            let logits = self.device.step(table, &self.rows)?;
            for (i, row) in logits.chunks_exact(vocab).take(chunk.len()).enumerate() {
                see(first + i, row);
            }
            self.tokens.extend_from_slice(chunk);
        }
        Ok(())
    }

    /// How the next tokens are chosen; the penalties look back over the tokens in the cache.
    pub fn set_sampling(&mut self, sampling: &Sampling, bias: &[(u32, f32)]) {
        self.device.set_sampling(sampling, bias, &self.tokens);
    }

    /// Samples the token that follows the last one fed, from the logits of that step.
    pub fn sample(&mut self) -> Result<u32, Error> {
        self.device.sample(self.tokens.len() as u32)
    }

    /// Feeds `start`, samples the next token, feeds that, …: `n` tokens, fewer if one of `ends` comes, if `emit` returns
    /// false, or on cancellation. The last token emitted is not yet in the cache. Allocates nothing.
    pub fn chain(
        &mut self,
        start: u32,
        n: usize,
        ends: &[u32],
        emit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<usize, Error> {
        self.check(&[start])?;
        let n = n
            .min(self.model.context() - self.tokens.len())
            .min(self.model.inner.max_chain);
        let row = Row {
            token: start,
            position: self.tokens.len() as u32,
            sequence: 0,
        };
        let Session {
            device,
            tokens,
            cancel,
            ..
        } = self;
        let mut fed = start;
        let count = device.chain(row, n, ends, cancel, &mut |token| {
            tokens.push(fed);
            fed = token;
            emit(token)
        })?;
        Ok(count)
    }

    pub(crate) fn table(&self, kind: fn(&Shape) -> bool) -> Option<(usize, usize)> {
        self.model.table(kind)
    }

    fn set_rows(&mut self, chunk: &[u32]) {
        let first = self.tokens.len();
        self.rows.clear();
        self.rows
            .extend(chunk.iter().enumerate().map(|(i, &token)| Row {
                token,
                position: (first + i) as u32,
                sequence: 0,
            }));
    }

    /// Refuses what would not fit or is not a token of this model.
    pub(crate) fn check(&self, tokens: &[u32]) -> Result<(), Error> {
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
