//! A launch: a pipeline, a bind group, a grid, and parameters in a buffer.

use wgpu::{BindGroup, ComputePass, ComputePipeline};

/// One dispatch.
pub(crate) struct Launch {
    /// The command's number in its pass.
    pub(crate) command: u32,
    pub(crate) bind: BindGroup,
    /// For one live row, or any number of them.
    pub(crate) shape: Shape,
    /// For several, if they are computed together.
    pub(crate) several: Option<Shape>,
    /// The fewest live rows for which it is recorded.
    pub(crate) least: u32,
    /// Of `sample`: who chooses.
    pub(crate) choice: Option<Choice>,
    pub(crate) divided: Option<Divided>,
    /// Of `rope_append` and the attention after it: the other command, if one launch may be both.
    pub(crate) partner: Option<u32>,
    /// Of attention: with its partner's work, for a single live row.
    pub(crate) joined: Option<(ComputePipeline, BindGroup)>,
}

/// How the GPU chooses the tokens of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Each row's largest logit.
    Argmax,
    /// As the row's slot demands.
    Sampler,
}

/// A launch of attention whose context is divided into splits of `split` positions.
#[derive(Clone, Copy)]
pub(crate) struct Divided {
    pub(crate) part: Part,
    pub(crate) split: u32,
}

#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// The second dimension of the grid has the splits.
    Splits,
    /// Only contexts of several splits have something to join.
    Merge,
}

/// How a launch computes its rows.
pub(crate) struct Shape {
    pub(crate) pipeline: ComputePipeline,
    /// Workgroups in two dimensions; the third has the live rows.
    pub(crate) grid: [u32; 2],
    /// Rows of a workgroup.
    pub(crate) rows: u32,
    /// The first dimension has the live rows, and the others the grid.
    pub(crate) rows_first: bool,
}

impl Launch {
    /// Records the launch for `rows` live rows, the longest of which sees `positions` positions. `together`: its partner is recorded too.
    pub(crate) fn record(
        &self,
        pass: &mut ComputePass<'_>,
        rows: u32,
        positions: u32,
        together: bool,
    ) {
        if rows < self.least {
            return;
        }
        let shape = match &self.several {
            Some(several) if rows > 1 => several,
            _ => &self.shape,
        };
        let [x, mut y] = shape.grid;
        if let Some(Divided { part, split }) = self.divided {
            let splits = positions.div_ceil(split);
            match part {
                Part::Splits => y = y.min(splits),
                Part::Merge if splits <= 1 => return,
                Part::Merge => {}
            }
        }
        let (pipeline, bind) = match &self.joined {
            Some((pipeline, bind)) if rows == 1 && together => (pipeline, bind),
            None if rows == 1 && together => return,
            _ => (&shape.pipeline, &self.bind),
        };
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, bind, &[]);
        let rows = rows.div_ceil(shape.rows);
        if shape.rows_first {
            pass.dispatch_workgroups(rows, x, y);
        } else {
            pass.dispatch_workgroups(x, y, rows);
        }
    }
}

/// Places in front of a command's parameters, as `Place` in `common.wgsl`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Place {
    pub(crate) operands: [u32; 4],
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) flags: u32,
    pub(crate) outputs: u32,
    pub(crate) pages: u32,
    pub(crate) page: u32,
    pub(crate) entries: u32,
    pub(crate) lists: u32,
    pub(crate) scratch: u32,
    pub(crate) splits: u32,
    pub(crate) split: u32,
    pub(crate) live: u32,
}

impl Place {
    /// With the command's own parameters, as they lie in the buffer.
    pub(crate) fn bytes(&self, params: &[u32; 16]) -> Vec<u8> {
        let [a, b, c, d] = self.operands;
        let place = [
            a,
            b,
            c,
            d,
            self.first,
            self.count,
            self.flags,
            self.outputs,
            self.pages,
            self.page,
            self.entries,
            self.lists,
            self.scratch,
            self.splits,
            self.split,
            self.live,
        ];
        let words = place.iter().chain(params);
        words.flat_map(|word| word.to_ne_bytes()).collect()
    }
}

/// Workgroups in two dimensions, each below the limit of 65,535.
pub(crate) fn plane(count: u32) -> [u32; 2] {
    const WIDE: u32 = 32768;
    if count > WIDE {
        [WIDE, count.div_ceil(WIDE)]
    } else {
        [count, 1]
    }
}

/// The parameters of a kernel over the rows of a matrix.
pub(crate) fn of_matrix(rows: u32, k: u32) -> Vec<u8> {
    let place = Place {
        count: rows,
        ..Place::default()
    };
    let mut params = [0; 16];
    params[0] = k;
    place.bytes(&params)
}
