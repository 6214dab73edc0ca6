//! Builds every mutant of a file into the file itself. Each one is switched on by its number at run time.

use crate::Mutant;
use proc_macro2::{LineColumn, Span};
use quote::quote;
use std::collections::{HashMap, HashSet};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, BinOp, Block, Expr, ExprClosure, ExprMatch, ImplItemConst, ItemConst, ItemStatic, Pat,
    Signature, parse_quote,
};

/// The file with a switch for each mutant, and the numbers of those that have one.
pub fn rewrite(source: &str, mutants: &[&Mutant]) -> syn::Result<(String, HashSet<u32>)> {
    let mut file = syn::parse_file(source)?;
    let mut places: HashMap<(usize, usize), Vec<&Mutant>> = HashMap::new();
    for mutant in mutants {
        let start = &mutant.span.start;
        places
            .entry((start.line, start.column))
            .or_default()
            .push(mutant);
    }
    let mut switches = Switches {
        places,
        made: HashSet::new(),
        constant: false,
        exhaustive: false,
    };
    switches.visit_file_mut(&mut file);
    Ok((prettyplease::unparse(&file), switches.made))
}

struct Switches<'a> {
    places: HashMap<(usize, usize), Vec<&'a Mutant>>,
    made: HashSet<u32>,
    /// True in constants, where a switch cannot be.
    constant: bool,
    /// True in a match that stays exhaustive without any one of its other arms.
    exhaustive: bool,
}

impl<'a> Switches<'a> {
    /// The mutants of a kind that begin here.
    fn at(&self, span: Span, genre: &str) -> Vec<&'a Mutant> {
        let LineColumn { line, column } = span.start();
        let found = self.places.get(&(line, column + 1)).into_iter().flatten();
        found.filter(|m| m.genre == genre).copied().collect()
    }

    /// `if mutant(1) { .. } else if mutant(2) { .. } else { .. }`
    fn choice(&mut self, variants: Vec<(u32, Expr)>, original: Expr) -> Expr {
        let mut all = original;
        for (number, variant) in variants.into_iter().rev() {
            self.made.insert(number);
            all = parse_quote!(if crate::__mutant(#number) { #variant } else { #all });
        }
        all
    }

    fn binary(&mut self, expr: &mut Expr) {
        let Expr::Binary(binary) = expr else { return };
        let mutants = self.at(binary.op.span(), "BinaryOperator");
        if mutants.is_empty() || has_let(&binary.left) || has_let(&binary.right) {
            return;
        }
        let (left, op, right) = (&binary.left, &binary.op, &binary.right);
        let other = |mutant: &&Mutant| -> Option<(u32, BinOp)> {
            Some((mutant.number, syn::parse_str(&mutant.replacement).ok()?))
        };
        let others: Vec<(u32, BinOp)> = mutants.iter().filter_map(other).collect();
        let made: Expr = match op {
            BinOp::And(_) | BinOp::Or(_) => {
                let variants = others
                    .iter()
                    .map(|(n, op)| (*n, parse_quote!(__l #op #right)));
                let all = self.choice(variants.collect(), parse_quote!(__l #op #right));
                parse_quote!(({ let __l: bool = #left; #all }))
            }
            BinOp::Eq(_)
            | BinOp::Ne(_)
            | BinOp::Lt(_)
            | BinOp::Le(_)
            | BinOp::Gt(_)
            | BinOp::Ge(_) => {
                let variants = others
                    .iter()
                    .map(|(n, op)| (*n, parse_quote!(*__l #op *__r)));
                let all = self.choice(variants.collect(), parse_quote!(*__l #op *__r));
                parse_quote!((match (&(#left), &(#right)) { (__l, __r) => #all }))
            }
            BinOp::Add(_)
            | BinOp::Sub(_)
            | BinOp::Mul(_)
            | BinOp::Div(_)
            | BinOp::Rem(_)
            | BinOp::Shl(_)
            | BinOp::Shr(_)
            | BinOp::BitAnd(_)
            | BinOp::BitOr(_)
            | BinOp::BitXor(_) => {
                let variants = others.iter().map(|(n, op)| (*n, parse_quote!(__l #op __r)));
                let all = self.choice(variants.collect(), parse_quote!(__l #op __r));
                parse_quote!((match ((#left), (#right)) { (__l, __r) => #all }))
            }
            _ => {
                let variants = others
                    .iter()
                    .map(|(n, op)| (*n, parse_quote!(#left #op __r)));
                let all = self.choice(variants.collect(), parse_quote!(#left #op __r));
                parse_quote!({ let __r = #right; #all })
            }
        };
        *expr = made;
    }

    fn unary(&mut self, expr: &mut Expr) {
        let Expr::Unary(unary) = expr else { return };
        let Some(mutant) = self.at(unary.op.span(), "UnaryOperator").first().copied() else {
            return;
        };
        let (op, inner) = (&unary.op, &unary.expr);
        let all = self.choice(
            vec![(mutant.number, parse_quote!(__v))],
            parse_quote!(#op __v),
        );
        *expr = parse_quote!((match (#inner) { __v => #all }));
    }

    fn fields(&mut self, expr: &mut Expr) {
        let Expr::Struct(structure) = expr else {
            return;
        };
        let Some(rest) = structure.rest.clone() else {
            return;
        };
        for field in &mut structure.fields {
            let Some(mutant) = self.at(field.member.span(), "StructField").first().copied() else {
                continue;
            };
            let (member, value) = (&field.member, &field.expr);
            let from_rest = parse_quote!((#rest).#member);
            let value: Expr = parse_quote!(#value);
            let all = self.choice(vec![(mutant.number, from_rest)], value);
            field.colon_token = Some(Default::default());
            field.expr = all;
        }
    }

    fn body(&mut self, block: &mut Block) {
        let Some(first) = block.stmts.first() else {
            return;
        };
        let mutants = self.at(first.span(), "FnValue");
        visit_mut::visit_block_mut(self, block);
        for mutant in mutants.iter().rev() {
            let Ok(value) = syn::parse_str::<Expr>(&mutant.replacement) else {
                continue;
            };
            let number = mutant.number;
            self.made.insert(number);
            block.stmts.insert(
                0,
                parse_quote!(if crate::__mutant(#number) { return #value; }),
            );
        }
    }

    fn function(&mut self, signature: &Signature, block: &mut Block) {
        match signature.constness {
            Some(_) => self.within(true, |s| visit_mut::visit_block_mut(s, block)),
            None => self.within(false, |s| s.body(block)),
        }
    }

    fn within(&mut self, constant: bool, visit: impl FnOnce(&mut Self)) {
        let outside = std::mem::replace(&mut self.constant, constant);
        visit(self);
        self.constant = outside;
    }
}

impl VisitMut for Switches<'_> {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        visit_mut::visit_expr_mut(self, expr);
        if !self.constant {
            self.binary(expr);
            self.unary(expr);
            self.fields(expr);
        }
    }

    /// The body of a closure is not constant, wherever the closure is.
    fn visit_expr_closure_mut(&mut self, closure: &mut ExprClosure) {
        self.within(false, |s| visit_mut::visit_expr_closure_mut(s, closure));
    }

    fn visit_expr_match_mut(&mut self, item: &mut ExprMatch) {
        let exhaustive = item.arms.iter().any(takes_all);
        let outside = std::mem::replace(&mut self.exhaustive, exhaustive);
        visit_mut::visit_expr_match_mut(self, item);
        self.exhaustive = outside;
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        if self.constant {
            return visit_mut::visit_arm_mut(self, arm);
        }
        let deleted = self.at(arm.pat.span(), "MatchArm");
        let guards = arm
            .guard
            .as_ref()
            .map_or(Vec::new(), |(_, g)| self.at(g.span(), "MatchArmGuard"));
        visit_mut::visit_arm_mut(self, arm);
        if let Some((_, guard)) = &mut arm.guard
            && !has_let(guard)
        {
            let variants = guards
                .iter()
                .filter_map(|m| Some((m.number, syn::parse_str(&m.replacement).ok()?)));
            let old: Expr = parse_quote!(#guard);
            **guard = self.choice(variants.collect(), old);
        }
        // Without an arm for the rest, a switch that takes an arm away would not compile.
        if let Some(mutant) = deleted.first().filter(|_| self.exhaustive) {
            let number = mutant.number;
            self.made.insert(number);
            let guard = match &arm.guard {
                Some((_, guard)) => quote!(!crate::__mutant(#number) && (#guard)),
                None => quote!(!crate::__mutant(#number)),
            };
            arm.guard = Some((Default::default(), Box::new(parse_quote!(#guard))));
        }
    }

    fn visit_item_fn_mut(&mut self, item: &mut syn::ItemFn) {
        self.function(&item.sig, &mut item.block);
    }

    fn visit_impl_item_fn_mut(&mut self, item: &mut syn::ImplItemFn) {
        self.function(&item.sig, &mut item.block);
    }

    fn visit_trait_item_fn_mut(&mut self, item: &mut syn::TraitItemFn) {
        if let Some(block) = &mut item.default {
            self.function(&item.sig, block);
        }
    }

    fn visit_item_const_mut(&mut self, item: &mut ItemConst) {
        self.within(true, |s| visit_mut::visit_item_const_mut(s, item));
    }

    fn visit_impl_item_const_mut(&mut self, item: &mut ImplItemConst) {
        self.within(true, |s| visit_mut::visit_impl_item_const_mut(s, item));
    }

    fn visit_item_static_mut(&mut self, item: &mut ItemStatic) {
        self.within(true, |s| visit_mut::visit_item_static_mut(s, item));
    }

    fn visit_type_mut(&mut self, _: &mut syn::Type) {}

    fn visit_expr_repeat_mut(&mut self, repeat: &mut syn::ExprRepeat) {
        self.visit_expr_mut(&mut repeat.expr);
    }

    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if module.ident != "tests" {
            visit_mut::visit_item_mod_mut(self, module);
        }
    }
}

/// True for an arm that takes whatever the others leave.
fn takes_all(arm: &Arm) -> bool {
    let pattern = match &arm.pat {
        Pat::Wild(_) => true,
        Pat::Ident(ident) => ident.subpat.is_none(),
        _ => false,
    };
    pattern && arm.guard.is_none()
}

/// True for a part of a `let` chain, which must stay one.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(number: u32, line: usize) -> Mutant {
        let json = serde_json::json!({
            "file": "x.rs", "package": "x", "genre": "MatchArm", "name": "", "replacement": "",
            "span": {"start": {"line": line, "column": 3}},
        });
        Mutant {
            number,
            ..serde_json::from_value(json).unwrap()
        }
    }

    #[test]
    fn an_arm_is_taken_away_only_where_another_takes_its_values() {
        let source =
            "fn f(x: u32) -> u32 {\n match x {\n  1 => 1,\n  2 => 2,\n  REST => 0,\n }\n}\n";
        let mutants = [arm(1, 3), arm(2, 4)];
        let made = |rest: &str| {
            let source = source.replace("REST", rest);
            rewrite(&source, &mutants.iter().collect::<Vec<_>>()).unwrap()
        };
        for rest in ["_", "other"] {
            let (text, numbers) = made(rest);
            assert_eq!(numbers, HashSet::from([1, 2]), "{rest}");
            assert!(text.contains("1 if !crate::__mutant(1u32) => 1"), "{text}");
        }
        for rest in ["_ if x > 7", "3..", "other @ 3.."] {
            assert_eq!(made(rest).1, HashSet::new(), "{rest}");
        }
    }
}
