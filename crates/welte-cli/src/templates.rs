//! Common chat templates by the names that llama.cpp gives them.

use anyhow::bail;

/// Names and texts.
const TEMPLATES: [(&str, &str); 7] = [
    (
        "chatml",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    (
        "llama2",
        "{% for m in messages %}{% if m.role == 'system' %}[INST] <<SYS>>\n{{ m.content | trim }}\n<</SYS>>\n\n\
        {% elif m.role == 'user' %}{% if loop.first or loop.previtem.role != 'system' %}[INST] {% endif %}{{ m.content | trim }} [/INST]\
        {% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "llama3",
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}\
        {% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    ),
    (
        "gemma",
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}\
        <start_of_turn>{{ 'model' if m.role == 'assistant' else 'user' }}\n\
        {% if loop.index == 2 and messages[0].role == 'system' %}{{ messages[0].content | trim }}\n\n{% endif %}\
        {{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    ),
    (
        "phi3",
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    ),
    (
        "zephyr",
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}\
        {% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    ),
    (
        "command-r",
        "{% for m in messages %}<|START_OF_TURN_TOKEN|>\
        <|{{ {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'}[m.role] }}_TOKEN|>{{ m.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}\
        {% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
    ),
];

/// The template of a name, or a template's text itself.
pub(crate) fn text(given: &str) -> anyhow::Result<String> {
    if let Some((_, text)) = TEMPLATES.iter().find(|(name, _)| *name == given) {
        return Ok(text.to_string());
    }
    // A name has no space and no braces; a text without either would drop the conversation.
    if !given.contains([' ', '{']) {
        let names = TEMPLATES.map(|(name, _)| name).join(", ");
        bail!("--chat-template {given}: is neither a template's text nor one of {names}");
    }
    Ok(given.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use welte::{ChatTemplate, Message, Rendered};

    /// Control tokens of the models that the templates are for.
    const MARKS: [(&str, &[&str]); 7] = [
        ("chatml", &["<|im_start|>", "<|im_end|>"]),
        ("llama2", &["<s>", "</s>", "[INST]", "[/INST]"]),
        (
            "llama3",
            &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        ),
        ("gemma", &["<start_of_turn>", "<end_of_turn>"]),
        (
            "phi3",
            &["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
        ),
        (
            "zephyr",
            &["<|system|>", "<|user|>", "<|assistant|>", "</s>"],
        ),
        (
            "command-r",
            &[
                "<|START_OF_TURN_TOKEN|>",
                "<|END_OF_TURN_TOKEN|>",
                "<|SYSTEM_TOKEN|>",
                "<|USER_TOKEN|>",
                "<|CHATBOT_TOKEN|>",
            ],
        ),
    ];

    /// The marks of a prompt that become tokens, in order.
    fn tokens<'a>(prompt: &Rendered, marks: &[&'a str]) -> Vec<&'a str> {
        let mut found = Vec::new();
        for &mark in marks {
            for (at, _) in prompt.text().match_indices(mark) {
                let inside = at..at + mark.len();
                if !prompt.covered().iter().any(|place| inside.contains(place)) {
                    found.push((at, mark));
                }
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, mark)| mark).collect()
    }

    #[test]
    fn every_template_keeps_marks_in_messages_text() {
        assert_eq!(MARKS.map(|(name, _)| name), TEMPLATES.map(|(name, _)| name));
        for (name, marks) in MARKS {
            let all: Vec<String> = marks.iter().map(|mark| mark.to_string()).collect();
            let template = ChatTemplate::new(&text(name).unwrap(), "<s>", "</s>").unwrap();
            let template = template.with_marks(&all).unwrap();
            let render = |content: &str| {
                let roles = ["system", "user", "assistant", "user"];
                let messages = roles.map(|role| Message::new(role, content));
                template.render(&messages, true).unwrap()
            };
            let hostile = format!("a{}b", marks.concat());
            let (harmless, prompt) = (render("fox"), render(&hostile));
            assert_eq!(harmless.matches("fox").count(), 4, "{name}: {harmless}");
            assert_eq!(prompt.matches(&hostile).count(), 4, "{name}: {prompt}");
            let own = tokens(&harmless, marks);
            assert!(own.len() >= 4, "{name}: {own:?}");
            assert_eq!(tokens(&prompt, marks), own, "{name}: {prompt}");
        }
    }
}
