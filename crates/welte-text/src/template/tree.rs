//! The tree of a template, rebuilt so that everything that grows passes through a check.
//!
//! minijinja limits steps, but one step can double a string, and it has no hook on operators. The operands of `+` and `~`,
//! what is sliced, filtered or copied, and what has methods called on it therefore pass through functions of
//! [`budget`](super::budget). Their names are not identifiers, so a template can neither call nor replace them.

use super::budget::{CONCAT, COPY, EXPAND, GROW, TIMES, filter_cost};
use super::open::OPEN;
use crate::Error;
use minijinja::machinery::ast::*;
use minijinja::machinery::{Span, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use std::collections::HashSet;

/// The most operators that may nest in one tag. The compiler recurses, and chains such as `a + b + …` nest, too.
const DEEPEST_CHAIN: usize = 200;
/// The most `elif`s, which nest like chains.
const MOST_BRANCHES: usize = 200;

/// Refuses trees that would overflow the stack of the compiler.
pub(super) fn check_depth(source: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    // Operators in each open bracket since its last comma.
    let mut open = vec![0_usize];
    let mut branches = 0;
    for token in tokenize(source, false, syntax.clone()) {
        // The parser reports it.
        let Ok((token, span)) = token else { break };
        let top = open.last_mut();
        match token {
            Token::TemplateData(_) => {}
            Token::VariableStart | Token::BlockStart | Token::VariableEnd | Token::BlockEnd => {
                open = vec![0];
            }
            Token::Comma => open.last_mut().into_iter().for_each(|top| *top = 0),
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                top.into_iter().for_each(|top| *top += 1);
                open.push(0);
            }
            Token::BracketClose | Token::ParenClose | Token::BraceClose => {
                open.pop();
            }
            Token::Ident("elif") => branches += 1,
            Token::Ident("not" | "and" | "or" | "is" | "in" | "if" | "else") => {
                top.into_iter().for_each(|top| *top += 1);
            }
            Token::Ident(_) | Token::Str(_) | Token::String(_) => {}
            Token::Int(_) | Token::Int128(_) | Token::Float(_) => {}
            _ => top.into_iter().for_each(|top| *top += 1),
        }
        let problem = if open.iter().sum::<usize>() > DEEPEST_CHAIN {
            format!("nests more than {DEEPEST_CHAIN} operators")
        } else if branches > MOST_BRANCHES {
            format!("has more than {MOST_BRANCHES} 'elif'")
        } else {
            continue;
        };
        let line = span.start_line.into();
        return Err(Error::Template { line, problem });
    }
    Ok(())
}

/// Rebuilds trees.
#[derive(Default)]
pub(super) struct Rebuild {
    /// The texts of the template's expressions.
    pub(super) literals: HashSet<String>,
    /// The names of attributes.
    pub(super) names: HashSet<String>,
}

/// A node with the place of another one.
fn at<T>(node: T, span: Span) -> Spanned<T> {
    Spanned::new(node, span)
}

/// `function(arguments)`
fn call<'s>(function: &'static str, arguments: Vec<Expr<'s>>, span: Span) -> Expr<'s> {
    let name = Expr::Var(at(Var { id: function }, span));
    let args = arguments.into_iter().map(CallArg::Pos).collect();
    Expr::Call(at(Call { expr: name, args }, span))
}

impl Rebuild {
    pub(super) fn statement<'s>(&mut self, statement: &Stmt<'s>) -> Result<Stmt<'s>, Error> {
        Ok(match statement {
            Stmt::Template(s) => {
                let children = self.body(&s.children)?;
                Stmt::Template(at(Template { children }, s.span()))
            }
            Stmt::EmitExpr(s) => {
                let expr = self.expression(&s.expr);
                Stmt::EmitExpr(at(EmitExpr { expr }, s.span()))
            }
            // Printed by the formatter, which counts.
            Stmt::EmitRaw(s) => {
                let value = Value::from(s.raw);
                let expr = Expr::Const(at(Const { value }, s.span()));
                Stmt::EmitExpr(at(EmitExpr { expr }, s.span()))
            }
            Stmt::ForLoop(s) => Stmt::ForLoop(at(
                ForLoop {
                    target: self.expression(&s.target),
                    iter: self.expression(&s.iter),
                    filter_expr: self.optional(&s.filter_expr),
                    recursive: s.recursive,
                    body: self.body(&s.body)?,
                    else_body: self.body(&s.else_body)?,
                },
                s.span(),
            )),
            Stmt::IfCond(s) => Stmt::IfCond(at(
                IfCond {
                    expr: self.expression(&s.expr),
                    true_body: self.body(&s.true_body)?,
                    false_body: self.body(&s.false_body)?,
                },
                s.span(),
            )),
            Stmt::WithBlock(s) => {
                let pairs = s.assignments.iter();
                let assignments = pairs
                    .map(|(name, value)| (self.expression(name), self.expression(value)))
                    .collect();
                let body = self.body(&s.body)?;
                Stmt::WithBlock(at(WithBlock { assignments, body }, s.span()))
            }
            Stmt::Set(s) => {
                let (target, expr) = (self.expression(&s.target), self.expression(&s.expr));
                Stmt::Set(at(Set { target, expr }, s.span()))
            }
            Stmt::SetBlock(s) => Stmt::SetBlock(at(
                SetBlock {
                    target: self.expression(&s.target),
                    filter: self.optional(&s.filter),
                    body: self.body(&s.body)?,
                },
                s.span(),
            )),
            Stmt::AutoEscape(s) => {
                let (enabled, body) = (self.expression(&s.enabled), self.body(&s.body)?);
                Stmt::AutoEscape(at(AutoEscape { enabled, body }, s.span()))
            }
            Stmt::FilterBlock(s) => {
                let (filter, body) = (self.expression(&s.filter), self.body(&s.body)?);
                Stmt::FilterBlock(at(FilterBlock { filter, body }, s.span()))
            }
            Stmt::Block(s) => Stmt::Block(at(
                Block {
                    name: s.name,
                    required: s.required,
                    body: self.body(&s.body)?,
                },
                s.span(),
            )),
            Stmt::Macro(s) => Stmt::Macro(self.declaration(s)?),
            Stmt::CallBlock(s) => Stmt::CallBlock(at(
                CallBlock {
                    call: at(self.call(&s.call), s.call.span()),
                    macro_decl: self.declaration(&s.macro_decl)?,
                },
                s.span(),
            )),
            Stmt::Continue(s) => Stmt::Continue(at(Continue, s.span())),
            Stmt::Break(s) => Stmt::Break(at(Break, s.span())),
            Stmt::Do(s) => {
                let call = at(self.call(&s.call), s.call.span());
                Stmt::Do(at(Do { call }, s.span()))
            }
            Stmt::Import(s) => return Err(other_template(s.span())),
            Stmt::FromImport(s) => return Err(other_template(s.span())),
            Stmt::Extends(s) => return Err(other_template(s.span())),
            Stmt::Include(s) => return Err(other_template(s.span())),
        })
    }

    fn body<'s>(&mut self, statements: &[Stmt<'s>]) -> Result<Vec<Stmt<'s>>, Error> {
        statements.iter().map(|one| self.statement(one)).collect()
    }

    fn declaration<'s>(&mut self, s: &Spanned<Macro<'s>>) -> Result<Spanned<Macro<'s>>, Error> {
        let declared = Macro {
            name: s.name,
            args: self.expressions(&s.args),
            defaults: self.expressions(&s.defaults),
            body: self.body(&s.body)?,
        };
        Ok(at(declared, s.span()))
    }

    fn expressions<'s>(&mut self, all: &[Expr<'s>]) -> Vec<Expr<'s>> {
        all.iter().map(|one| self.expression(one)).collect()
    }

    fn optional<'s>(&mut self, one: &Option<Expr<'s>>) -> Option<Expr<'s>> {
        one.as_ref().map(|one| self.expression(one))
    }

    fn expression<'s>(&mut self, expression: &Expr<'s>) -> Expr<'s> {
        match expression {
            Expr::Var(e) => Expr::Var(at(Var { id: e.id }, e.span())),
            Expr::Const(e) => self.constant(e),
            Expr::Slice(e) => self.slice(e),
            Expr::UnaryOp(e) => {
                let op = if matches!(e.op, UnaryOpKind::Not) {
                    UnaryOpKind::Not
                } else {
                    UnaryOpKind::Neg
                };
                let expr = self.expression(&e.expr);
                Expr::UnaryOp(at(UnaryOp { op, expr }, e.span()))
            }
            Expr::BinOp(e) => self.binary(e),
            Expr::Compare(e) => self.compare(e),
            Expr::IfExpr(e) => self.choice(e),
            Expr::Filter(e) => self.filter(e),
            Expr::Test(e) => {
                let (expr, args) = (self.expression(&e.expr), self.arguments(&e.args, None));
                let name = e.name;
                Expr::Test(at(Test { name, expr, args }, e.span()))
            }
            Expr::GetAttr(e) => {
                self.names.insert(e.name.to_owned());
                let (expr, name) = (self.expression(&e.expr), e.name);
                Expr::GetAttr(at(GetAttr { expr, name }, e.span()))
            }
            Expr::GetItem(e) => {
                let expr = self.expression(&e.expr);
                let subscript_expr = self.expression(&e.subscript_expr);
                Expr::GetItem(at(
                    GetItem {
                        expr,
                        subscript_expr,
                    },
                    e.span(),
                ))
            }
            Expr::Call(e) => Expr::Call(at(self.call(e), e.span())),
            Expr::List(e) => {
                let items = self.expressions(&e.items);
                Expr::List(at(List { items }, e.span()))
            }
            Expr::Tuple(e) => {
                let items = self.expressions(&e.items);
                Expr::Tuple(at(Tuple { items }, e.span()))
            }
            Expr::Map(e) => {
                let (keys, values) = (self.expressions(&e.keys), self.expressions(&e.values));
                Expr::Map(at(Map { keys, values }, e.span()))
            }
        }
    }

    fn constant<'s>(&mut self, e: &Spanned<Const>) -> Expr<'s> {
        if let Some(text) = e.value.as_str() {
            self.literals.insert(text.to_owned());
        }
        let value = e.value.clone();
        Expr::Const(at(Const { value }, e.span()))
    }

    fn slice<'s>(&mut self, e: &Spanned<Slice<'s>>) -> Expr<'s> {
        let slice = Slice {
            expr: call(COPY, vec![self.expression(&e.expr)], e.span()),
            start: self.optional(&e.start),
            stop: self.optional(&e.stop),
            step: self.optional(&e.step),
        };
        Expr::Slice(at(slice, e.span()))
    }

    fn binary<'s>(&mut self, e: &Spanned<BinOp<'s>>) -> Expr<'s> {
        let (op, span) = (e.op, e.span());
        use BinOpKind::{Eq, Gt, Gte, In, Lt, Lte, Ne};
        // Chains such as `a < b < c` are in `compare`.
        if matches!(op, Eq | Ne | Lt | Lte | Gt | Gte | In) {
            let (left, right) = (self.operand(&e.left), self.operand(&e.right));
            return Expr::BinOp(at(BinOp { op, left, right }, span));
        }
        let (left, right) = (self.expression(&e.left), self.expression(&e.right));
        let (left, right) = match op {
            BinOpKind::Mul => return call(TIMES, vec![left, right], span),
            BinOpKind::Concat => return call(CONCAT, vec![left, right], span),
            BinOpKind::Add => {
                let grow = |side| call(GROW, vec![side], span);
                (grow(left), grow(right))
            }
            _ => (left, right),
        };
        Expr::BinOp(at(BinOp { op, left, right }, span))
    }

    fn compare<'s>(&mut self, e: &Spanned<Compare<'s>>) -> Expr<'s> {
        let expr = self.operand(&e.expr);
        let operand = |op: &CompareOp<'s>| CompareOp {
            op: op.op,
            expr: self.operand(&op.expr),
        };
        let ops = e.ops.iter().map(operand).collect();
        Expr::Compare(at(Compare { expr, ops }, e.span()))
    }

    /// An operand of a comparison. The template's own texts have no covers.
    fn operand<'s>(&mut self, e: &Expr<'s>) -> Expr<'s> {
        match (self.expression(e), e) {
            (expr, Expr::Const(_)) => expr,
            (expr, e) => call(OPEN, vec![expr], e.span()),
        }
    }

    fn choice<'s>(&mut self, e: &Spanned<IfExpr<'s>>) -> Expr<'s> {
        let choice = IfExpr {
            test_expr: self.expression(&e.test_expr),
            true_expr: self.expression(&e.true_expr),
            false_expr: self.optional(&e.false_expr),
        };
        Expr::IfExpr(at(choice, e.span()))
    }

    fn filter<'s>(&mut self, e: &Spanned<Filter<'s>>) -> Expr<'s> {
        let input = e.expr.as_ref().map(|input| self.expression(input));
        let input = input.map(|input| match filter_cost(e.name) {
            Some(check) => call(check, vec![input], e.span()),
            None => input,
        });
        let filter = Filter {
            name: e.name,
            expr: input,
            args: self.arguments(&e.args, None),
        };
        Expr::Filter(at(filter, e.span()))
    }

    fn call<'s>(&mut self, e: &Call<'s>) -> Call<'s> {
        // These copy what they are given.
        let copies = matches!(&e.expr, Expr::Var(name) if matches!(name.id, "dict" | "namespace"));
        Call {
            expr: self.expression(&e.expr),
            args: self.arguments(&e.args, copies.then_some(EXPAND)),
        }
    }

    fn arguments<'s>(
        &mut self,
        all: &[CallArg<'s>],
        check: Option<&'static str>,
    ) -> Vec<CallArg<'s>> {
        let mut one = |e: &Expr<'s>| {
            let argument = self.expression(e);
            match check {
                Some(check) => call(check, vec![argument], e.span()),
                None => argument,
            }
        };
        let argument = |argument: &CallArg<'s>| match argument {
            CallArg::Pos(e) => CallArg::Pos(one(e)),
            CallArg::Kwarg(name, e) => CallArg::Kwarg(name, one(e)),
            CallArg::PosSplat(e) => CallArg::PosSplat(one(e)),
            CallArg::KwargSplat(e) => CallArg::KwargSplat(one(e)),
        };
        all.iter().map(argument).collect()
    }
}

fn other_template(span: Span) -> Error {
    Error::Template {
        line: span.start_line.into(),
        problem: "a chat template cannot use other templates".to_owned(),
    }
}
