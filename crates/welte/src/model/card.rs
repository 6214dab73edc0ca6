//! The card of a loaded model.

use super::Model;
use crate::card::{Abilities, Card, TemplateCard, fills};

impl Model {
    /// The model's card, with what it can do on its device as it was loaded.
    pub fn card(&self) -> Card {
        let source = self.chat_template_source();
        let made = source.and_then(|source| self.chat_template_from(source).ok());
        let template = source.zip(made.as_ref());
        let template = template.map(|(source, made)| TemplateCard::of(source, made));
        self.card_with(template)
    }

    /// The same for a model with another chat template, or none.
    pub fn card_with(&self, template: Option<TemplateCard>) -> Card {
        let mut card = self.inner.card.clone();
        card.template = template;
        let abilities = Abilities {
            generates: !self.is_encoder(),
            embeds: self.embedding_size().is_some(),
            scores: self.scores_pairs(),
            template,
            fills: self.tokenizer().is_ok_and(fills),
            sees: self.eyes().is_some(),
            hears: self.ears().is_some(),
            guesses: self.has_draft_layer(),
            ..Abilities::default()
        };
        card.capabilities = abilities.capabilities();
        card
    }
}
