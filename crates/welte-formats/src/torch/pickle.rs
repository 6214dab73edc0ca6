//! The stack machine of pickles, for a dict of tensors alone.

use crate::Error;
use safetensors::Dtype;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;

/// The deepest nesting of tuples. A tensor needs one of one level in another.
const MOST_DEPTH: usize = 4;
/// The most sizes of a tensor.
const MOST_RANK: usize = 8;
/// The most tensors of a file.
const MOST_TENSORS: usize = 1 << 18;
/// The most values on the stack. Python puts a thousand entries into a dict at once.
const MOST_VALUES: usize = 1 << 16;

/// A tensor as the pickle describes it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    pub(super) dtype: Dtype,
    /// The name of the storage.
    pub(super) storage: Rc<str>,
    /// The first of its elements in the storage.
    first: usize,
    pub(super) shape: Vec<usize>,
}

impl Tensor {
    /// Its size and where it begins in its storage, in bytes.
    pub(super) fn bytes(&self) -> Option<(usize, usize)> {
        let element = self.dtype.bitsize() / 8;
        let mut sides = self.shape.iter();
        let count = sides.try_fold(1, |n: usize, side| n.checked_mul(*side))?;
        Some((
            count.checked_mul(element)?,
            self.first.checked_mul(element)?,
        ))
    }
}

/// What a name of Python stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Global {
    OrderedDict,
    RebuildTensor,
    Storage(Dtype),
}

impl Global {
    /// Those of a state dict.
    fn of(module: &str, name: &str) -> Option<Global> {
        let storage = match (module, name) {
            ("collections", "OrderedDict") => return Some(Global::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => return Some(Global::RebuildTensor),
            ("torch", name) => name.strip_suffix("Storage")?,
            _ => return None,
        };
        Some(Global::Storage(match storage {
            "Float" => Dtype::F32,
            "Half" => Dtype::F16,
            "BFloat16" => Dtype::BF16,
            "Double" => Dtype::F64,
            "Long" => Dtype::I64,
            "Int" => Dtype::I32,
            "Short" => Dtype::I16,
            "Char" => Dtype::I8,
            "Byte" => Dtype::U8,
            "Bool" => Dtype::BOOL,
            _ => return None,
        }))
    }
}

/// What the stack holds.
#[derive(Clone, Debug)]
enum Value {
    /// None, true or false.
    Plain,
    Number(i64),
    Text(Rc<str>),
    /// Its values, and how deep tuples nest in it.
    Tuple(Rc<[Value]>, usize),
    Global(Global),
    Storage(Dtype, Rc<str>),
    Tensor(Rc<Tensor>),
    /// The tensors of a dict, and the first key whose value is not one.
    Dict(Vec<(Rc<str>, Rc<Tensor>)>, Option<Rc<str>>),
    /// A dict that the memory of the machine has.
    Remembered,
}

/// Reads a pickle: the tensors of its dict, by their names.
pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<Vec<(String, Tensor)>, Error> {
    let mut machine = Machine {
        path,
        bytes,
        at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memory: HashMap::new(),
    };
    let result = machine.run()?;
    if let Value::Remembered = result {
        return Err(machine.again());
    }
    let Value::Dict(tensors, other) = result else {
        return Err(machine.wrong("does not hold a state dict; save the result of `state_dict()`"));
    };
    if let Some(key) = other {
        let problem = format!(
            "{key:?} is not a tensor; supported are state dicts, which have nothing but tensors"
        );
        return Err(machine.wrong(&problem));
    }
    // A short pickle can repeat a long name, so no name is copied before all are known to differ.
    let mut names = HashSet::new();
    if let Some((name, _)) = tensors.iter().find(|(name, _)| !names.insert(&**name)) {
        return Err(machine.wrong(&format!("has {name:?} twice")));
    }
    let named = tensors
        .iter()
        .map(|(name, tensor)| (name.to_string(), (**tensor).clone()));
    Ok(named.collect())
}

struct Machine<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memory: HashMap<u32, Value>,
}

impl<'a> Machine<'a> {
    fn wrong(&self, problem: &str) -> Error {
        Error::malformed(self.path, "data.pkl", problem)
    }

    fn damaged(&self) -> Error {
        let problem = format!(
            "is broken near byte {}: the file is damaged; download it again",
            self.at
        );
        self.wrong(&problem)
    }

    /// What is wrong with a dict that is recalled.
    fn again(&self) -> Error {
        self.wrong("refers to a dict a second time, which is not supported; convert the file to safetensors")
    }

    fn take(&mut self, size: usize) -> Result<&'a [u8], Error> {
        let end = self.at.checked_add(size);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| self.damaged())?;
        self.at += size;
        Ok(taken)
    }

    /// A number without a sign, the low byte first.
    fn number(&mut self, size: usize) -> Result<u32, Error> {
        let bytes = self.take(size)?;
        let each = bytes.iter().rev();
        Ok(each.fold(0, |all, byte| all << 8 | u32::from(*byte)))
    }

    fn line(&mut self) -> Result<&'a str, Error> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or_else(|| self.damaged())?;
        let line = self.take(end + 1)?;
        std::str::from_utf8(&line[..end]).map_err(|_| self.damaged())
    }

    fn pop(&mut self) -> Result<Value, Error> {
        // Nothing below a mark belongs to what follows it.
        let floor = self.marks.last().copied().unwrap_or(0);
        let value = (self.stack.len() > floor).then(|| self.stack.pop());
        value.flatten().ok_or_else(|| self.damaged())
    }

    fn pop_marked(&mut self) -> Result<Vec<Value>, Error> {
        let mark = self.marks.pop().ok_or_else(|| self.damaged())?;
        Ok(self.stack.split_off(mark))
    }

    fn run(&mut self) -> Result<Value, Error> {
        loop {
            if self.stack.len() + self.marks.len() > MOST_VALUES {
                return Err(self.wrong("puts more values on the stack than a state dict needs"));
            }
            let code = self.take(1)?[0];
            match code {
                // PROTO
                0x80 => {
                    let protocol = self.number(1)?;
                    if protocol != 2 {
                        let problem = format!(
                            "is of pickle protocol {protocol}; supported is 2, the default of `torch.save`"
                        );
                        return Err(self.wrong(&problem));
                    }
                }
                b'.' => return self.pop(),
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    let global = Global::of(module, name).ok_or_else(|| {
                        self.wrong(&format!(
                            "names {module}.{name}, which a state dict of tensors does not need, so the file is refused and nothing of it was run; \
                             convert it to safetensors if you trust it"
                        ))
                    })?;
                    self.stack.push(Value::Global(global));
                }
                // BINPUT, LONG_BINPUT
                b'q' => self.remember(1)?,
                b'r' => self.remember(4)?,
                // BINGET, LONG_BINGET
                b'h' => self.recall(1)?,
                b'j' => self.recall(4)?,
                b'(' => self.marks.push(self.stack.len()),
                // EMPTY_TUPLE, TUPLE, TUPLE1 to TUPLE3
                b')' => self.tuple(Vec::new())?,
                b't' => {
                    let values = self.pop_marked()?;
                    self.tuple(values)?;
                }
                0x85..=0x87 => {
                    let count = usize::from(code - 0x84);
                    let mut values = Vec::with_capacity(count);
                    for _ in 0..count {
                        values.push(self.pop()?);
                    }
                    values.reverse();
                    self.tuple(values)?;
                }
                // BINUNICODE
                b'X' => {
                    let size = self.number(4)? as usize;
                    let text = std::str::from_utf8(self.take(size)?);
                    let text = text.map_err(|_| self.damaged())?;
                    self.stack.push(Value::Text(text.into()));
                }
                // BININT, BININT1, BININT2, LONG1
                b'J' => {
                    let number = self.number(4)? as i32;
                    self.stack.push(Value::Number(number.into()));
                }
                b'K' | b'M' => {
                    let number = self.number(if code == b'K' { 1 } else { 2 })?;
                    self.stack.push(Value::Number(number.into()));
                }
                0x8a => self.long()?,
                b'N' | 0x88 | 0x89 => self.stack.push(Value::Plain),
                // BINPERSID
                b'Q' => self.storage()?,
                b'R' => self.reduce()?,
                b'}' => self.stack.push(Value::Dict(Vec::new(), None)),
                // SETITEM, SETITEMS
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.set(vec![key, value])?;
                }
                b'u' => {
                    let values = self.pop_marked()?;
                    self.set(values)?;
                }
                // BUILD: versions of modules, which nothing reads.
                b'b' => {
                    self.pop()?;
                    if !matches!(self.stack.last(), Some(Value::Dict(..))) {
                        return Err(self.wrong("sets the fields of something other than a dict, which a state dict does not need"));
                    }
                }
                code => {
                    let problem = format!(
                        "has the pickle instruction {code:#04x}, which a state dict of tensors does not need; convert the file to safetensors"
                    );
                    return Err(self.wrong(&problem));
                }
            }
        }
    }

    fn remember(&mut self, size: usize) -> Result<(), Error> {
        let number = self.number(size)?;
        let value = match self.stack.last() {
            Some(Value::Dict(..)) => Value::Remembered,
            Some(value) => value.clone(),
            None => return Err(self.damaged()),
        };
        self.memory.insert(number, value);
        Ok(())
    }

    fn recall(&mut self, size: usize) -> Result<(), Error> {
        let number = self.number(size)?;
        let value = self.memory.get(&number).cloned();
        let value = value.ok_or_else(|| self.damaged())?;
        self.stack.push(value);
        Ok(())
    }

    fn tuple(&mut self, values: Vec<Value>) -> Result<(), Error> {
        let depth = |value: &Value| match value {
            Value::Tuple(_, depth) => *depth,
            _ => 0,
        };
        let depth = 1 + values.iter().map(depth).max().unwrap_or(0);
        if depth > MOST_DEPTH {
            return Err(self.wrong("nests tuples deeper than a tensor needs"));
        }
        self.stack.push(Value::Tuple(values.into(), depth));
        Ok(())
    }

    /// A number of some bytes, with a sign.
    fn long(&mut self) -> Result<(), Error> {
        let size = self.number(1)? as usize;
        if size > 8 {
            return Err(self.wrong("has a number of more than 64 bits"));
        }
        let bytes = self.take(size)?;
        let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let mut all = if negative { [0xff; 8] } else { [0; 8] };
        all[..size].copy_from_slice(bytes);
        self.stack.push(Value::Number(i64::from_le_bytes(all)));
        Ok(())
    }

    fn storage(&mut self) -> Result<(), Error> {
        let id = self.pop()?;
        let known = match &id {
            Value::Tuple(parts, _) => match &parts[..] {
                [
                    Value::Text(kind),
                    Value::Global(Global::Storage(dtype)),
                    Value::Text(name),
                    Value::Text(_),
                    Value::Number(_),
                ] if &**kind == "storage" => Some((*dtype, name.clone())),
                _ => None,
            },
            _ => None,
        };
        let (dtype, name) =
            known.ok_or_else(|| self.wrong("refers to something other than a storage"))?;
        self.stack.push(Value::Storage(dtype, name));
        Ok(())
    }

    /// What a call of a function would make.
    fn reduce(&mut self) -> Result<(), Error> {
        let (given, function) = (self.pop()?, self.pop()?);
        let Value::Tuple(given, _) = given else {
            return Err(self.damaged());
        };
        let made = match (function, &given[..]) {
            (Value::Global(Global::OrderedDict), []) => Value::Dict(Vec::new(), None),
            (
                Value::Global(Global::RebuildTensor),
                [
                    Value::Storage(dtype, storage),
                    Value::Number(first),
                    Value::Tuple(shape, _),
                    Value::Tuple(strides, _),
                    Value::Plain,
                    Value::Dict(hooks, None) ,
                ],
            ) if hooks.is_empty() => self.tensor(*dtype, storage, *first, shape, strides)?,
            (_, given) if given.iter().any(|value| matches!(value, Value::Remembered)) => return Err(self.again()),
            _ => return Err(self.wrong("calls a function with values that a state dict of tensors does not have; convert the file to safetensors")),
        };
        self.stack.push(made);
        Ok(())
    }

    fn tensor(
        &self,
        dtype: Dtype,
        storage: &Rc<str>,
        first: i64,
        shape: &[Value],
        strides: &[Value],
    ) -> Result<Value, Error> {
        // A short pickle can recall a long shape many times.
        if shape.len() > MOST_RANK {
            let problem = format!("has a tensor of more than {MOST_RANK} dimensions");
            return Err(self.wrong(&problem));
        }
        let size = |value: &Value| match value {
            Value::Number(number) => usize::try_from(*number).ok(),
            _ => None,
        };
        let sizes = |values: &[Value]| values.iter().map(size).collect::<Option<Vec<_>>>();
        let (first, shape, strides) = usize::try_from(first)
            .ok()
            .filter(|_| shape.len() == strides.len())
            .and_then(|first| Some((first, sizes(shape)?, sizes(strides)?)))
            .ok_or_else(|| self.wrong("has a tensor whose shape is not a list of sizes"))?;
        let mut wanted = 1usize;
        for (side, stride) in shape.iter().zip(&strides).rev() {
            if *side != 1 && *stride != wanted {
                return Err(self.wrong(
                    "has a tensor whose elements are not one after the other; save it with `.contiguous()`",
                ));
            }
            wanted = wanted.saturating_mul(*side);
        }
        Ok(Value::Tensor(Rc::new(Tensor {
            dtype,
            storage: storage.clone(),
            first,
            shape,
        })))
    }

    /// Puts keys and values into the dict below them.
    fn set(&mut self, pairs: Vec<Value>) -> Result<(), Error> {
        let mut dict = self.pop()?;
        let (tensors, other) = match &mut dict {
            Value::Dict(tensors, other) => (tensors, other),
            Value::Remembered => return Err(self.again()),
            _ => return Err(self.damaged()),
        };
        let mut pairs = pairs.into_iter();
        while let Some(key) = pairs.next() {
            let (Value::Text(key), Some(value)) = (key, pairs.next()) else {
                return Err(self.wrong("has a dict whose keys are not texts"));
            };
            match value {
                Value::Tensor(tensor) => tensors.push((key, tensor)),
                _ => *other = other.take().or(Some(key)),
            }
        }
        if tensors.len() > MOST_TENSORS {
            let problem = format!("has more than {MOST_TENSORS} tensors");
            return Err(self.wrong(&problem));
        }
        self.stack.push(dict);
        Ok(())
    }
}
