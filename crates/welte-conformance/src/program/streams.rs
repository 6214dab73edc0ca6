//! A layer of several streams of hidden states.

use super::Emit;
use crate::model::Streams;
use welte_table::*;

impl Emit<'_> {
    pub(super) fn streams(&mut self, s: &Streams) {
        let (places, dim, streams) = (self.places, self.m.dim, s.streams);
        let (Some(all), Some(now), Some(rates)) = (places.mixed, places.normed, places.rates)
        else {
            unreachable!("sized by this layer");
        };
        self.project("streams in", streams * dim, all);
        self.project("streams' router", streams, rates);
        let p = params::MatchSquares {
            dim,
            groups: streams,
            x_stride: places.x.stride,
            y_stride: all.stride,
        };
        let buffers = [places.x.at, all.at];
        self.push(Op::MatchSquares, &[], &buffers, p.words());
        let table = self.vector("predictions", streams * streams * streams);
        let p = params::AltUpPredict {
            dim,
            streams,
            scale: 0.7,
            x_stride: rates.stride,
            y_stride: all.stride,
        };
        let buffers = [rates.at, all.at];
        self.push(Op::AltUpPredict, &[table], &buffers, p.words());
        let weight = self.optional(s.weighted, "factors", dim);
        let p = params::Multiply {
            n: dim,
            x_stride: all.stride,
            y_stride: now.stride,
        };
        let buffers = [all.at, now.at];
        self.push(Op::Multiply, &[weight], &buffers, p.words());
        let p = params::Cutoff {
            n: dim,
            deviations: s.deviations,
            y_stride: now.stride,
        };
        self.push(Op::Cutoff, &[], &[now.at], p.words());
        let table = self.vector("corrections", streams * streams);
        let p = params::AltUpCorrect {
            dim,
            streams,
            scale: 0.7,
            now_stride: now.stride,
            x_stride: rates.stride,
            y_stride: all.stride,
        };
        let buffers = [now.at, rates.at, all.at];
        self.push(Op::AltUpCorrect, &[table], &buffers, p.words());
        self.add("streams out", streams * dim, all);
        // Some values have no source, and some have the same one.
        let source = |at: u32| {
            if at % 3 == 1 {
                -1.0
            } else {
                (at * 7 % dim) as f32
            }
        };
        let map = self.b.constant("map", (0..dim).map(source).collect());
        let p = params::Spread {
            n: dim,
            k: dim,
            x_stride: places.x.stride,
            y_stride: now.stride,
        };
        let buffers = [places.x.at, now.at];
        self.push(Op::Spread, &[map], &buffers, p.words());
    }
}
