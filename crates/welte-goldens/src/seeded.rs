//! Bytes from a seed. Element `i` of a stream is a hash of the stream's key and `i`.

use half::{bf16, f16};
use serde::Deserialize;
use std::io::{Error, Result};
use std::path::Path;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// The standard deviation of the sum of four random 16-bit numbers.
const SPREAD: f64 = 37837.0;

/// A `.fill` file.
#[derive(Deserialize)]
struct Fill {
    seed: u64,
    /// The file's length, and the checksum of its bytes.
    size: usize,
    sum: String,
    tensors: Vec<Tensor>,
}

/// A tensor's name, where it begins in the file, and its bytes in hexadecimal, or its blocks, their width and their fields.
#[derive(Deserialize)]
#[serde(untagged)]
enum Tensor {
    Exact(String, usize, String),
    Made(String, usize, usize, usize, Vec<Field>),
}

/// Neighbouring elements in every block: where the first one begins, how many there are, their type, and its two numbers.
#[derive(Deserialize)]
struct Field(usize, usize, Kind, f64, f64);

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// Floats with a mean and a standard deviation.
    F32,
    F16,
    Bf16,
    /// Integers within bounds: a byte, or two halves of a byte.
    Byte,
    Nibbles,
    /// The high half of a byte is the first number. The low half stays.
    High,
    /// Any 8-bit float with 4 bits of exponent, but the two that are not numbers.
    E4m3,
}

/// The bytes of the file whose head and fill are beside a path.
pub(crate) fn expand(path: &Path) -> Result<Vec<u8>> {
    let part = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::fs::read(&name).map_err(|e| Error::other(format!("{}: {e}", name.display())))
    };
    let fill: Fill = serde_json::from_slice(&part(".fill")?)?;
    let mut bytes = part(".head")?;
    bytes.resize(fill.size, 0);
    for tensor in &fill.tensors {
        let (name, at, made) = match tensor {
            Tensor::Exact(name, at, hex) => (name, *at, decode(hex)?),
            Tensor::Made(name, at, blocks, width, fields) => {
                let made = generate(fill.seed, name, *blocks, *width, fields);
                (name, *at, made)
            }
        };
        let Some(place) = bytes.get_mut(at..at + made.len()) else {
            return Err(Error::other(format!("{name} ends after the file")));
        };
        place.copy_from_slice(&made);
    }
    let sum = checksum(&bytes);
    if sum != fill.sum {
        let why = format!("the bytes sum up to {sum}, not to {}", fill.sum);
        return Err(Error::other(why));
    }
    Ok(bytes)
}

fn decode(hex: &str) -> Result<Vec<u8>> {
    let byte = |i| u8::from_str_radix(&hex[i..i + 2], 16).map_err(Error::other);
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// The last steps of splitmix64.
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn word(key: u64, i: usize) -> u64 {
    mix(key.wrapping_add((i as u64 + 1).wrapping_mul(STEP)))
}

/// A long prompt: tokens from 2 on.
pub fn tokens(seed: u64, count: usize, vocabulary: usize) -> Vec<u32> {
    let token = |i| 2 + (((word(seed, i) >> 32) * (vocabulary as u64 - 2)) >> 32) as u32;
    (0..count).map(token).collect()
}

/// A tensor's key: FNV-1a of its name, with the seed.
fn key_of(seed: u64, name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    word(hash.wrapping_add(seed), 0)
}

fn generate(seed: u64, name: &str, blocks: usize, width: usize, fields: &[Field]) -> Vec<u8> {
    let key = key_of(seed, name);
    let mut bytes = vec![0; blocks * width];
    for (i, eight) in bytes.chunks_mut(8).enumerate() {
        eight.copy_from_slice(&word(key, i).to_le_bytes()[..eight.len()]);
    }
    for (number, &Field(at, count, kind, a, b)) in (1u64..).zip(fields) {
        let key = word(key.wrapping_add(number), 0);
        for (i, block) in bytes.chunks_mut(width).enumerate() {
            for j in 0..count {
                put(block, at, j, kind, (a, b), word(key, i * count + j));
            }
        }
    }
    bytes
}

/// Writes element `j` of a field.
fn put(block: &mut [u8], at: usize, j: usize, kind: Kind, (a, b): (f64, f64), word: u64) {
    let (first, second) = (word >> 32, word & 0xffff_ffff);
    let within = |word: u64, low: i64, high: i64| {
        (low + (word as i64)
            .wrapping_mul(high - low + 1)
            .div_euclid(1 << 32)) as u8
    };
    let float = || {
        let parts = [0, 16, 32, 48].map(|shift| (word >> shift & 0xffff) as i64);
        let total = parts.iter().sum::<i64>() - 2 * 65535;
        (total as f64 * (b / SPREAD) + a) as f32
    };
    let mut store = |bytes: &[u8]| {
        let at = at + j * bytes.len();
        block[at..at + bytes.len()].copy_from_slice(bytes);
    };
    match kind {
        Kind::F32 => store(&float().to_le_bytes()),
        Kind::F16 => store(&f16::from_f32(float()).to_le_bytes()),
        Kind::Bf16 => store(&bf16::from_f32(float()).to_le_bytes()),
        Kind::Byte => store(&[within(first, a as i64, b as i64)]),
        Kind::Nibbles => {
            let [low, high] = [first, second].map(|word| within(word, a as i64, b as i64));
            store(&[low | high << 4]);
        }
        Kind::High => block[at + j] = block[at + j] & 15 | (a as u8) << 4,
        Kind::E4m3 => store(&[within(first, 0, 126) | within(second, 0, 1) << 7]),
    }
}

/// Of a file's words of 8 bytes, with zeros at the end.
fn checksum(bytes: &[u8]) -> String {
    let word = |(i, chunk): (u64, &[u8])| {
        let mut eight = [0; 8];
        eight[..chunk.len()].copy_from_slice(chunk);
        mix(u64::from_le_bytes(eight).wrapping_add(i.wrapping_mul(STEP)))
    };
    let words = (1u64..).zip(bytes.chunks(8)).map(word);
    format!("{:016x}", words.fold(0u64, u64::wrapping_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `seeded.py` makes of every type of field.
    #[test]
    fn fields_are_those_of_python() {
        let fields = r#"[[0,1,"f32",1.5,0.25],[4,1,"f16",0,0.003],[6,2,"bf16",-1,1],[10,2,"byte",-127,127],
            [12,1,"nibbles",5,9],[13,1,"high",11,0],[14,1,"e4m3",0,0]]"#;
        let fields: Vec<Field> = serde_json::from_str(fields).unwrap();
        let bytes = generate(7, "blk.0.attn_q.weight", 2, 17, &fields);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "043ac53f3f93adbeabbfcc6559b4ad9926a6d1ce3fb2174d3e45c0074c69b07cccfe"
        );
    }

    #[test]
    fn a_changed_byte_changes_the_sum() {
        let (a, b) = ([1u8; 19], [1u8; 20]);
        assert_ne!(checksum(&a), checksum(&b));
        assert_ne!(checksum(&[1, 2]), checksum(&[2, 1]));
    }
}
