//! The names under which a model knows functions of namespaces and tools of MCP servers.

use std::collections::HashMap;

/// A tool of a server, by the name under which the model knows it.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) label: String,
    pub(super) name: String,
    /// The user must agree to each call.
    pub(super) ask_first: bool,
}

/// Namespace and name of functions, by the name under which the model knows them.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    spaces: HashMap<String, (String, String)>,
    /// Tools of MCP servers, by the same.
    remote: HashMap<String, Remote>,
}

impl Names {
    /// Adds a function of a namespace.
    pub(super) fn add_function(&mut self, known_as: String, place: (String, String)) {
        self.spaces.insert(known_as, place);
    }

    pub(super) fn add_remote(&mut self, known_as: String, remote: Remote) {
        self.remote.insert(known_as, remote);
    }

    pub(super) fn remote(&self, known_as: &str) -> Option<&Remote> {
        self.remote.get(known_as)
    }

    pub(super) fn has_remote(&self) -> bool {
        !self.remote.is_empty()
    }

    /// Whether the request offers this tool of a server.
    pub(super) fn offers(&self, label: &str, name: &str) -> bool {
        let mut all = self.remote.values();
        all.any(|remote| remote.label == label && remote.name == name)
    }

    /// The name under which the model knows a server's tool. Tools that are no longer offered keep their own.
    pub(super) fn of_remote<'a>(&'a self, label: &str, name: &'a str) -> &'a str {
        let is = |remote: &Remote| remote.label == label && remote.name == name;
        let all = self.remote.iter().filter(|(_, remote)| is(remote));
        all.map(|(known_as, _)| known_as.as_str())
            .min()
            .unwrap_or(name)
    }

    /// Namespace and name of a function that the model calls.
    pub(super) fn of_call(&self, known_as: String) -> (Option<String>, String) {
        match self.spaces.get(&known_as) {
            Some((namespace, name)) => (Some(namespace.clone()), name.clone()),
            None => (None, known_as),
        }
    }
}

/// The name under which the model knows a function in a namespace.
pub(super) fn known_as(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}
