//! Adapters of an engine: which are loaded, and in which place of the banks each is.
//!
//! A place belongs to an adapter as long as anybody has a handle of it: a request that runs keeps its adapter after that was unloaded, and
//! the place is free once the request has ended.

use crate::adapter::AdapterContent;
use crate::cache::{Sha256, sha256};
use crate::{AdapterSource, Error};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use welte_device::{Context, Error as DeviceError, SlotAdapter};

/// An adapter that an engine has loaded, and how strong it is. Clones are cheap.
#[derive(Clone)]
pub struct Adapter {
    loaded: Arc<LoadedAdapter>,
    scale: f32,
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, scale) = (self.name(), self.scale);
        f.debug_struct("Adapter")
            .field("name", &name)
            .field("scale", &scale)
            .finish()
    }
}

pub(crate) struct LoadedAdapter {
    source: AdapterSource,
    content: Arc<AdapterContent>,
    place: u32,
    free: Free,
}

/// Places that no adapter has.
type Free = Arc<Mutex<Vec<u32>>>;

impl Drop for LoadedAdapter {
    fn drop(&mut self) {
        locked(&self.free).push(self.place);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Adapter {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.loaded.source.name
    }

    /// Where it was read from.
    pub fn path(&self) -> &Path {
        &self.loaded.source.path
    }

    /// The highest rank of its matrices.
    pub fn rank(&self) -> u32 {
        self.loaded.content.data.rank
    }

    /// What it adds is multiplied by this.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// The same adapter, as strong as this. 0 is none.
    pub fn scaled(&self, scale: f32) -> Adapter {
        Adapter {
            scale,
            ..self.clone()
        }
    }

    /// What a slot with it has.
    pub(crate) fn of_slot(&self) -> Option<SlotAdapter> {
        let (place, scale) = (self.loaded.place, self.scale);
        (scale != 0.0).then_some(SlotAdapter { place, scale })
    }

    /// Stands for what it adds to a model: equal for equal adapters, whatever their names. `None`: it adds nothing.
    pub(crate) fn identity(&self) -> Option<Sha256> {
        let scale = self.scale.to_le_bytes();
        let parts = [b"adapter".as_slice(), &self.loaded.content.hash, &scale];
        (self.scale != 0.0).then(|| sha256(parts))
    }
}

/// The adapters of an engine.
pub(crate) struct Loadable {
    list: Mutex<Vec<Adapter>>,
    free: Free,
    places: u32,
}

impl Loadable {
    pub(crate) fn new(places: u32) -> Loadable {
        Loadable {
            list: Mutex::default(),
            free: Arc::new(Mutex::new((0..places).rev().collect())),
            places,
        }
    }

    /// Takes an adapter in, in place of that of its name if it `replaces`. `write` is told of it before anybody can name it.
    pub(super) fn add(
        &self,
        source: AdapterSource,
        content: Arc<AdapterContent>,
        replaces: bool,
        write: impl FnOnce(Arc<LoadedAdapter>),
    ) -> Result<Adapter, Error> {
        let mut list = locked(&self.list);
        let mut others = list.iter();
        let before = others.position(|adapter| replaces && adapter.name() == source.name);
        if before.is_none() {
            self.check_name(&list, &source.name)?;
        }
        let Some(place) = locked(&self.free).pop() else {
            let used = list.len() as u32;
            let leaving = self.places - used;
            let busy = if leaving > 0 {
                format!(", and {leaving} are still used by requests")
            } else {
                String::new()
            };
            return Err(Error::Adapter {
                name: source.name,
                problem: format!(
                    "cannot be loaded: {used} of {} places are taken{busy}. Unload another one, or start with a larger --max-adapters",
                    self.places
                ),
            });
        };
        let scale = source.scale;
        let loaded = Arc::new(LoadedAdapter {
            source,
            content,
            place,
            free: self.free.clone(),
        });
        write(loaded.clone());
        let adapter = Adapter { loaded, scale };
        match before {
            Some(at) => list[at] = adapter.clone(),
            None => list.push(adapter.clone()),
        }
        Ok(adapter)
    }

    fn check_name(&self, list: &[Adapter], name: &str) -> Result<(), Error> {
        let problem = if name.is_empty() {
            "a name is needed"
        } else if list.iter().any(|adapter| adapter.name() == name) {
            "is loaded already"
        } else {
            return Ok(());
        };
        Err(Error::Adapter {
            name: name.to_string(),
            problem: problem.into(),
        })
    }

    /// The adapters that can be named, in the order in which they were loaded.
    pub(super) fn all(&self) -> Vec<Adapter> {
        locked(&self.list).clone()
    }

    /// Refuses a name that is taken.
    pub(super) fn check(&self, name: &str) -> Result<(), Error> {
        self.check_name(&locked(&self.list), name)
    }

    /// Takes an adapter out. False if there is none of this name.
    pub(super) fn remove(&self, name: &str) -> bool {
        let mut list = locked(&self.list);
        let at = list.iter().position(|adapter| adapter.name() == name);
        at.map(|at| list.remove(at)).is_some()
    }

    /// Whether an adapter is one of this engine's.
    pub(crate) fn owns(&self, adapter: &Adapter) -> bool {
        Arc::ptr_eq(&self.free, &adapter.loaded.free)
    }
}

/// Writes the banks of the engine's context.
#[derive(Default)]
pub(crate) struct Written(Vec<Weak<LoadedAdapter>>);

impl Written {
    /// Puts adapters into their places. All are noted first: after an error the context is lost, and [`Written::renew`] writes them.
    pub(crate) fn write(
        &mut self,
        context: &mut dyn Context,
        adapters: impl IntoIterator<Item = Arc<LoadedAdapter>>,
    ) -> Result<(), DeviceError> {
        let adapters: Vec<_> = adapters.into_iter().collect();
        self.0.retain(|adapter| adapter.strong_count() > 0);
        self.0.extend(adapters.iter().map(Arc::downgrade));
        write_all(context, &adapters)
    }

    /// Puts all of them into the banks of a new context.
    pub(crate) fn renew(&mut self, context: &mut dyn Context) -> Result<(), DeviceError> {
        let known: Vec<_> = self.0.iter().filter_map(Weak::upgrade).collect();
        write_all(context, &known)
    }
}

fn write_all(
    context: &mut dyn Context,
    adapters: &[Arc<LoadedAdapter>],
) -> Result<(), DeviceError> {
    let mut adapters = adapters.iter();
    adapters.try_for_each(|adapter| adapter.content.write(context, adapter.place))
}
