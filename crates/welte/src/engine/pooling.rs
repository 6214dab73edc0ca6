//! How the vectors of texts are pooled.

use crate::model::Sparse;
use crate::{Error, Model};
use welte_models::Pooling;
use welte_table::{Op, Pass, params};

/// True if a vector is made of more than the last row of its text.
pub(crate) fn pools_several(pass: &Pass) -> bool {
    pooling_of(pass).is_some_and(|kind| kind != Pooling::Last.word())
}

fn pooling_of(pass: &Pass) -> Option<u32> {
    let pool = pass.commands.iter().find(|c| c.op == Op::Pool);
    pool.map(|c| params::Pool::of(&c.params).kind)
}

impl Model {
    /// The number of first rows to leave out of a vector, of `left_out` that should be.
    pub(crate) fn pooled_from(&self, left_out: usize) -> Result<usize, Error> {
        let pass = self.inner.embed.map(|embed| &self.program().passes[embed]);
        let Some(pass) = pass else {
            return Ok(0);
        };
        let kind = pooling_of(pass);
        // The first row is that of a token which stays.
        if self.inner.sparse == Some(Sparse::Tokens { first: true }) {
            return Err(Error::PromptPooling {
                origin: self.origin().to_string(),
            });
        }
        if kind == Some(Pooling::Last.word()) {
            return Ok(0);
        }
        // Means of parts can be told from means of the whole, also after layers that are linear.
        let mut after = pass
            .commands
            .iter()
            .skip_while(|c| c.op != Op::Pool)
            .skip(1);
        let linear = after.all(|c| matches!(c.op, Op::Matmul | Op::Bias));
        if kind == Some(Pooling::Mean.word()) && linear {
            Ok(left_out)
        } else {
            Err(Error::PromptPooling {
                origin: self.origin().to_string(),
            })
        }
    }
}
