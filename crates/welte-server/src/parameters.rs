//! The parameters of created models: checked, and applied to requests.

use crate::error::Failure;
use crate::fields::Fields;
use crate::ignored::Ignored;
use crate::recipe::Recipe;
use crate::{ollama, sampling};
use welte::GenerateOptions;

impl Recipe {
    /// What is wrong with it, apart from the base: roles, parameters, a template of another language.
    pub fn check(&self) -> Result<(), String> {
        self.apply_checked(&mut GenerateOptions::default())
            .map_err(|failure| format!("parameter {}", failure.message))?;
        for turn in &self.messages {
            if !["system", "user", "assistant"].contains(&turn.role.as_str()) {
                return Err(format!(
                    "message of {:?}: use system, user or assistant",
                    turn.role
                ));
            }
        }
        let go = |template: &String| template.contains("{{ .") || template.contains("{{.");
        if self.template.as_ref().is_some_and(go) {
            return Err(
                "the template is written in Go's language; use a Jinja template, as models' own files have, or leave it out"
                    .to_string(),
            );
        }
        Ok(())
    }

    /// Sets what the parameters say. They were [checked](Recipe::check).
    pub fn apply(&self, options: &mut GenerateOptions) {
        let mut changed = options.clone();
        if self.apply_checked(&mut changed).is_ok() {
            *options = changed;
        }
    }

    fn apply_checked(&self, options: &mut GenerateOptions) -> Result<(), Failure> {
        let mut fields = Fields::root(self.parameters.clone(), &Ignored::new(true))?;
        sampling::take(&mut fields, options)?;
        sampling::take_limit(&mut fields, "num_predict", options)?;
        fields.ignore(&ollama::LOADING);
        fields.take::<u32>("num_ctx")?;
        fields.finish()
    }
}
