//! The extension module `welte._welte`: what `python/welte` is made of. Fields cross the border as JSON.
#![cfg(feature = "extension")]

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use welte_bindings::{Events, Kind, Library, Problem};

/// Ends calls that were given it.
#[pyclass(frozen)]
struct Cancel(AtomicBool);

#[pymethods]
impl Cancel {
    #[new]
    fn new() -> Cancel {
        Cancel(AtomicBool::new(false))
    }

    /// Ends them. They raise `CancelledError`.
    fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a call without the interpreter's lock, until it ends, is cancelled, or a signal handler of Python's raises.
fn waiting<T: Send>(
    py: Python<'_>,
    cancel: Option<&Py<Cancel>>,
    call: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T, Problem> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let done = py.detach(|| {
        call(&mut || match Python::attach(|py| py.check_signals()) {
            Ok(()) => cancel.is_none_or(|cancel| !cancel.get().0.load(Ordering::Relaxed)),
            Err(error) => {
                raised = Some(error);
                false
            }
        })
    });
    match raised {
        Some(error) => Err(error),
        None => done.map_err(|problem| exception(py, &problem)),
    }
}

/// The exception for an error, from `welte/_errors.py`.
fn exception(py: Python<'_>, problem: &Problem) -> PyErr {
    let name = match problem.kind {
        Kind::Argument => "ArgumentError",
        Kind::Model => "ModelError",
        Kind::Memory => "OutOfMemoryError",
        Kind::Request => "RequestError",
        Kind::Busy => "BusyError",
        Kind::Cancelled => "CancelledError",
        Kind::Internal => "InternalError",
    };
    let made = py
        .import("welte._errors")
        .and_then(|module| module.getattr(name))
        .and_then(|class| class.call1((&problem.message,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// A loaded model.
#[pyclass(frozen)]
struct Model {
    /// Some until it is dropped.
    library: Option<Arc<Library>>,
}

/// Drops what ends with a thread or with work on the disk, while other threads of Python go on.
fn drop_detached<T: Send>(value: T) {
    Python::attach(|py| py.detach(|| drop(value)));
}

impl Drop for Model {
    fn drop(&mut self) {
        drop_detached(self.library.take());
    }
}

impl Model {
    fn library(&self) -> PyResult<&Arc<Library>> {
        let closed = || PyRuntimeError::new_err("the model is closed");
        self.library.as_ref().ok_or_else(closed)
    }
}

#[pymethods]
impl Model {
    #[new]
    fn new(
        py: Python<'_>,
        source: String,
        options: String,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Model> {
        let mut raised = None;
        let tell = |py: Python<'_>, at: (u64, u64)| {
            py.check_signals()?;
            progress
                .iter()
                .try_for_each(|progress| progress.call1(py, at).map(drop))
        };
        let loaded = py.detach(|| {
            Library::load(
                &source,
                &options,
                &mut |done, total| match Python::attach(|py| tell(py, (done, total))) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        raised = Some(error);
                        ControlFlow::Break(())
                    }
                },
            )
        });
        match raised {
            Some(error) => Err(error),
            None => loaded
                .map(|library| Model {
                    library: Some(library),
                })
                .map_err(|problem| exception(py, &problem)),
        }
    }

    fn info(&self) -> PyResult<String> {
        Ok(self.library()?.info().to_string())
    }

    fn request(
        &self,
        py: Python<'_>,
        method: String,
        path: String,
        body: String,
        cancel: Option<Py<Cancel>>,
    ) -> PyResult<String> {
        let library = self.library()?;
        waiting(py, cancel.as_ref(), |alive| {
            library.request(&method, &path, &body, alive)
        })
    }

    /// The whole response to a request that is streamed inside, so that it can be interrupted between tokens.
    fn chat(
        &self,
        py: Python<'_>,
        request: String,
        cancel: Option<Py<Cancel>>,
    ) -> PyResult<String> {
        let library = self.library()?;
        waiting(py, cancel.as_ref(), |alive| {
            let mut ignore = |_: &str| ControlFlow::Continue(());
            library.chat(&request, &mut ignore, alive)
        })
        .map(|whole| whole.to_string())
    }

    /// `prompt` is JSON.
    fn generate(
        &self,
        py: Python<'_>,
        prompt: String,
        options: String,
        cancel: Option<Py<Cancel>>,
    ) -> PyResult<String> {
        let library = self.library()?;
        let prompt = serde_json::from_str(&prompt).unwrap_or_default();
        waiting(py, cancel.as_ref(), |alive| {
            let mut ignore = |_: &str| ControlFlow::Continue(());
            library.generate(prompt, &options, &mut ignore, alive)
        })
        .map(|whole| whole.to_string())
    }

    fn stream(&self, py: Python<'_>, path: String, body: String) -> PyResult<Stream> {
        let library = self.library()?;
        let events = waiting(py, None, |alive| library.stream(&path, &body, alive))?;
        Ok(Stream {
            events: Mutex::new(Some(events)),
            closed: AtomicBool::new(false),
        })
    }

    fn encode(&self, py: Python<'_>, text: String, special: bool) -> PyResult<Vec<u32>> {
        let library = self.library()?;
        waiting(py, None, |_| library.encode(&text, special))
    }

    fn decode(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<String> {
        let library = self.library()?;
        waiting(py, None, |_| library.decode(&tokens))
    }

    fn render(&self, py: Python<'_>, messages: String) -> PyResult<String> {
        let library = self.library()?;
        let messages = serde_json::from_str(&messages).unwrap_or_default();
        waiting(py, None, |alive| library.render(messages, alive))
    }

    /// The values of all vectors as native floats of 32 bits, and the size of each.
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<String>,
        options: String,
        cancel: Option<Py<Cancel>>,
    ) -> PyResult<(Bound<'py, PyBytes>, usize)> {
        let library = self.library()?;
        let (values, size) = waiting(py, cancel.as_ref(), |alive| {
            library.embed(&texts, &options, alive)
        })?;
        let bytes = PyBytes::new_with(py, values.len() * 4, |bytes| {
            for (bytes, value) in bytes.chunks_exact_mut(4).zip(&values) {
                bytes.copy_from_slice(&value.to_ne_bytes());
            }
            Ok(())
        })?;
        Ok((bytes, size))
    }
}

/// A response that is streamed: an iterator of JSON texts.
#[pyclass(frozen)]
struct Stream {
    events: Mutex<Option<Events>>,
    closed: AtomicBool,
}

#[pymethods]
impl Stream {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        waiting(py, None, |alive| {
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(open) = events.as_mut() else {
                return Ok(None);
            };
            let next = open.next(&mut || !self.closed.load(Ordering::Relaxed) && alive());
            let closed = self.closed.load(Ordering::Relaxed);
            if closed || !matches!(next, Ok(Some(_))) {
                *events = None;
            }
            if closed { Ok(None) } else { next }
        })
    }

    /// Ends the request. Another thread may wait for its next event meanwhile.
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        if let Ok(mut events) = self.events.try_lock() {
            drop_detached(events.take());
        }
    }
}

/// The last owner of a model ends it.
impl Drop for Stream {
    fn drop(&mut self) {
        let events = self.events.get_mut();
        drop_detached(events.unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// The memory plan of a model, as JSON.
#[pyfunction]
fn plan(py: Python<'_>, source: String, options: String) -> PyResult<String> {
    let planned = waiting(py, None, |_| welte_bindings::plan(&source, &options))?;
    Ok(planned.to_string())
}

/// The command line, whose first argument is the command's name. Returns the exit code. `own`: the words that start it anew.
#[pyfunction]
fn command(py: Python<'_>, args: Vec<OsString>, own: Vec<String>) -> u8 {
    welte_cli::started_by(own);
    let ended = py.detach(|| welte_cli::main(args.into_iter()));
    // The standard library does not give the number back.
    let code = (0..=u8::MAX).find(|code| ExitCode::from(*code) == ended);
    code.unwrap_or(1)
}

#[pymodule]
fn _welte(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Model>()?;
    module.add_class::<Stream>()?;
    module.add_class::<Cancel>()?;
    module.add_function(wrap_pyfunction!(plan, module)?)?;
    module.add_function(wrap_pyfunction!(command, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
