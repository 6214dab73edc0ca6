//! System messages where a chat template has no place for them. Agents send several at the beginning, and further ones between the
//! turns; many templates know one, at the beginning, and refuse others or leave them out.

use welte::Message;

/// A conversation whose system messages fit every template that knows them: those at the beginning are one message, and later ones
/// are text of the user. `None` if it has this form already.
pub(crate) fn with_one_system(messages: &[Message]) -> Option<Vec<Message>> {
    if !messages.iter().skip(1).any(is_system) {
        return None;
    }
    let mut all: Vec<Message> = Vec::new();
    for message in messages {
        let mut message = message.clone();
        if is_system(&message) && !all.iter().all(is_system) {
            message.role = "user".to_string();
        }
        match all.last_mut() {
            // Templates also want the turns to alternate.
            Some(last) if last.role == message.role && is_text(last) && is_text(&message) => {
                last.content.push_str("\n\n");
                last.append(message);
            }
            _ => all.push(message),
        }
    }
    Some(all)
}

/// Whether a prompt has the texts of all system messages.
pub(crate) fn has_systems(prompt: &str, messages: &[Message]) -> bool {
    let mut systems = messages.iter().filter(|message| is_system(message));
    systems.all(|message| prompt.contains(message.content.trim()))
}

fn is_system(message: &Message) -> bool {
    message.role == "system"
}

/// A message of the user or the system, which has nothing but text.
fn is_text(message: &Message) -> bool {
    matches!(message.role.as_str(), "system" | "user")
}

#[cfg(test)]
mod tests {
    use super::*;
    use welte_text::{Image, ImageSource};

    fn conversation(turns: &[(&str, &str)]) -> Vec<Message> {
        let message = |(role, text): &(&str, &str)| Message::new(*role, *text);
        turns.iter().map(message).collect()
    }

    fn shape(messages: &[Message]) -> Vec<(&str, &str)> {
        messages.iter().map(|m| (&*m.role, &*m.content)).collect()
    }

    #[test]
    fn later_system_messages_become_text_of_the_user() {
        let messages = conversation(&[
            ("system", "a"),
            ("system", "b"),
            ("user", "c"),
            ("system", "d"),
            ("assistant", "e"),
            ("system", "f"),
            ("user", "g"),
        ]);
        let one = with_one_system(&messages).unwrap();
        assert_eq!(
            shape(&one),
            [
                ("system", "a\n\nb"),
                ("user", "c\n\nd"),
                ("assistant", "e"),
                ("user", "f\n\ng")
            ]
        );
        // Images move with their text.
        let mut images = messages.clone();
        images[3].images.push(Image {
            at: 1,
            source: ImageSource::Url("u".into()),
            name: "i".into(),
        });
        let merged = with_one_system(&images).unwrap();
        assert_eq!(merged[1].images[0].at, "c\n\nd".len());
        assert!(has_systems("a b d f", &messages));
        assert!(!has_systems("a b d", &messages));
        assert!(with_one_system(&messages[1..3]).is_none());
        assert!(with_one_system(&[]).is_none());
    }
}
