//! As much of ZeroMQ's protocol (ZMTP 3) as a publisher needs: the greeting without security, frames, subscriptions.

use std::io::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bits of a frame's first byte.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The largest frame that peers may send: they subscribe, or ask for a number.
const LARGEST: u64 = 1 << 12;

/// The greeting of both sides: the signature, version 3.0, the mechanism NULL, and zeros.
fn greeting() -> [u8; 64] {
    let mut bytes = [0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// A frame of a message or a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) is_command: bool,
    /// Further frames of the message follow.
    pub(super) more: bool,
    pub(super) body: Vec<u8>,
}

/// Adds a frame of a message.
pub(super) fn add_frame(out: &mut Vec<u8>, body: &[u8], more: bool) {
    add(out, body, if more { MORE } else { 0 });
}

fn add(out: &mut Vec<u8>, body: &[u8], flags: u8) {
    match u8::try_from(body.len()) {
        Ok(short) => out.extend([flags, short]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

pub(super) async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> Result<Frame> {
    let flags = from.read_u8().await?;
    let length = match flags & LONG {
        0 => u64::from(from.read_u8().await?),
        _ => from.read_u64().await?,
    };
    if length > LARGEST {
        return Err(wrong("a frame is too long"));
    }
    let mut body = vec![0; length as usize];
    from.read_exact(&mut body).await?;
    Ok(Frame {
        is_command: flags & COMMAND != 0,
        more: flags & MORE != 0,
        body,
    })
}

/// Greets a peer as a socket of a kind, such as `PUB`. The peer must be of one of these kinds.
pub(super) async fn greet(
    io: &mut (impl AsyncRead + AsyncWrite + Unpin),
    kind: &str,
    peers: &[&str],
) -> Result<()> {
    io.write_all(&greeting()).await?;
    let mut theirs = [0; 64];
    io.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[9] != 0x7f || theirs[10] < 3 {
        return Err(wrong(
            "the peer does not speak version 3 of ZeroMQ's protocol",
        ));
    }
    if theirs[12..32] != greeting()[12..32] {
        return Err(wrong("the peer wants a security mechanism"));
    }
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend((kind.len() as u32).to_be_bytes());
    ready.extend_from_slice(kind.as_bytes());
    let mut out = Vec::new();
    add(&mut out, &ready, COMMAND);
    io.write_all(&out).await?;
    let theirs = read_frame(io).await?;
    let kind = theirs.body.strip_prefix(b"\x05READY").and_then(socket_type);
    match kind {
        Some(kind) if peers.iter().any(|known| known.as_bytes() == kind) => Ok(()),
        _ => Err(wrong("the peer is another kind of socket")),
    }
}

/// The value of the property Socket-Type.
fn socket_type(mut properties: &[u8]) -> Option<&[u8]> {
    while let Some((length, rest)) = properties.split_first() {
        let (name, rest) = rest.split_at_checked(*length as usize)?;
        let (length, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        properties = rest;
    }
    None
}

/// What a subscriber says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Subscribe(Vec<u8>),
    Cancel(Vec<u8>),
    /// It wants this answer.
    Ping(Vec<u8>),
    Nothing,
}

impl Said {
    pub(super) fn of(frame: &Frame) -> Said {
        let body = &frame.body[..];
        let command = |name: &[u8]| body.strip_prefix(name).map(<[u8]>::to_vec);
        match (frame.is_command, body.split_first()) {
            (true, _) => {
                let subscribes = command(b"\x09SUBSCRIBE").map(Said::Subscribe);
                let cancels = || command(b"\x06CANCEL").map(Said::Cancel);
                // A time to live of two bytes comes before what is sent back.
                let context = || command(b"\x04PING")?.get(2..).map(<[u8]>::to_vec);
                let pings = || context().map(|context| Said::Ping(pong(&context)));
                subscribes
                    .or_else(cancels)
                    .or_else(pings)
                    .unwrap_or(Said::Nothing)
            }
            (false, Some((1, topic))) => Said::Subscribe(topic.to_vec()),
            (false, Some((0, topic))) => Said::Cancel(topic.to_vec()),
            (false, _) => Said::Nothing,
        }
    }
}

fn pong(context: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    add(&mut out, &[b"\x04PONG", context].concat(), COMMAND);
    out
}

fn wrong(problem: &str) -> Error {
    Error::new(ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn peers_of_fitting_kinds_greet_each_other() {
        for (peer, fits) in [("SUB", true), ("XSUB", true), ("PULL", false)] {
            let (mut a, mut b) = tokio::io::duplex(1024);
            let both = tokio::join!(
                greet(&mut a, "PUB", &["SUB", "XSUB"]),
                greet(&mut b, peer, &["PUB"])
            );
            assert_eq!((both.0.is_ok(), both.1.is_ok()), (fits, true), "{peer}");
        }
        let mut old = greeting();
        old[10] = 1;
        for bytes in [old, [b'G'; 64]] {
            let (mut a, mut b) = tokio::io::duplex(1024);
            b.write_all(&bytes).await.unwrap();
            assert!(greet(&mut a, "PUB", &["SUB"]).await.is_err());
        }
    }

    #[tokio::test]
    async fn frames_are_read_as_they_were_written() {
        for length in [0, 1, 255, 256, 4096] {
            let mut bytes = Vec::new();
            add_frame(&mut bytes, &vec![7; length], length == 1);
            let frame = read_frame(&mut &bytes[..]).await.unwrap();
            let expected = Frame {
                is_command: false,
                more: length == 1,
                body: vec![7; length],
            };
            assert_eq!(frame, expected);
        }
        let mut long = Vec::new();
        add_frame(&mut long, &[0; 5000], false);
        assert!(read_frame(&mut &long[..]).await.is_err());
    }

    #[test]
    fn subscribers_say_what_they_want_in_two_ways() {
        let said = |is_command, body: &[u8]| {
            let body = body.to_vec();
            Said::of(&Frame {
                is_command,
                more: false,
                body,
            })
        };
        assert_eq!(said(false, b"\x01kv@"), Said::Subscribe(b"kv@".to_vec()));
        assert_eq!(
            said(true, b"\x09SUBSCRIBEkv@"),
            Said::Subscribe(b"kv@".to_vec())
        );
        assert_eq!(said(false, b"\x00kv@"), Said::Cancel(b"kv@".to_vec()));
        assert_eq!(said(true, b"\x06CANCEL"), Said::Cancel(Vec::new()));
        assert_eq!(
            said(true, b"\x04PING\x00\x10ab"),
            Said::Ping(b"\x04\x07\x04PONGab".to_vec())
        );
        assert_eq!(said(false, b""), Said::Nothing);
        assert_eq!(said(true, b"\x04PING"), Said::Nothing);
    }
}
