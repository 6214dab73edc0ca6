//! A number that stands for a model's weights, wherever they lie.

use super::store::{Sha256, sha256};
use welte_formats::Checkpoint;
use welte_models::ModelSpec;

/// Bytes that are read at the beginning, in the middle and at the end of each tensor, rounded to whole rows.
const SAMPLE: usize = 4096;

/// SHA-256 over what the model is, and over names, shapes, formats and samples of all tensors. Two models that differ in
/// it have different weights. It depends neither on the path nor on the time.
pub(crate) fn fingerprint(checkpoint: &dyn Checkpoint, spec: &ModelSpec) -> Sha256 {
    of_tensors(sha256([format!("{spec:?}").as_bytes()]), checkpoint)
}

/// That of a model whose pages hold keys and values of a draft head, too.
pub(crate) fn with_head(model: Sha256, head: &dyn Checkpoint) -> Sha256 {
    let mut sum = sha256([&model[..], b"draft head"]);
    let keys = head.metadata().iter();
    for (key, value) in keys.filter(|(key, _)| !key.starts_with("tokenizer.")) {
        let value = format!("{value:?}");
        sum = sha256([&sum[..], key.as_bytes(), b"=", value.as_bytes()]);
    }
    of_tensors(sum, head)
}

/// Goes on with the tensors of a checkpoint.
fn of_tensors(mut sum: Sha256, checkpoint: &dyn Checkpoint) -> Sha256 {
    for tensor in checkpoint.tensors() {
        let row = tensor.format.bytes(tensor.k).unwrap_or(0).max(1);
        let rows = (SAMPLE / row).clamp(1, tensor.n.max(1)).min(tensor.n);
        let mut samples = Vec::with_capacity(3);
        for first in [0, (tensor.n - rows) / 2, tensor.n - rows] {
            // A tensor that cannot be read is not used by the model either.
            samples.extend(checkpoint.rows(tensor, first, rows).ok());
        }
        let description = format!("{tensor:?}");
        let samples = samples.iter().map(|sample| sample.as_ref());
        sum = sha256(
            [sum.as_slice(), description.as_bytes()]
                .into_iter()
                .chain(samples),
        );
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open;
    use std::borrow::Cow;
    use welte_formats::TensorInfo;
    use welte_table::Format;

    fn of(source: &str) -> Sha256 {
        let checkpoint = open(source).unwrap();
        let spec = welte_models::spec(checkpoint.as_ref()).unwrap();
        fingerprint(checkpoint.as_ref(), &spec)
    }

    #[test]
    fn a_model_has_one_fingerprint_wherever_it_lies() {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("other.gguf");
        std::fs::copy(demo, &copy).unwrap();
        assert_eq!(of(demo), of(copy.to_str().unwrap()));
        // The last byte of the file belongs to a tensor.
        let mut bytes = std::fs::read(&copy).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&copy, bytes).unwrap();
        assert_ne!(of(demo), of(copy.to_str().unwrap()));
    }

    #[test]
    fn a_draft_head_and_its_settings_count() {
        let demo = of("synthetic:tiny:q8_0");
        let folder = tempfile::tempdir().unwrap();
        let with = |change: &dyn Fn(&str) -> String| {
            let head = welte_goldens::Golden::new("drafts/dflash/hf");
            for file in std::fs::read_dir(head.path()).unwrap() {
                let file = file.unwrap();
                std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
            }
            let path = folder.path().join("config.json");
            let config = change(&std::fs::read_to_string(&path).unwrap());
            std::fs::write(path, config).unwrap();
            with_head(demo, &*open(folder.path().to_str().unwrap()).unwrap())
        };
        let plain = with(&|config| config.to_owned());
        assert_ne!(plain, demo);
        assert_eq!(plain, with(&|config| config.to_owned()));
        let other = |config: &str| {
            let changed = config.replace("   0,\n   1\n", "   1,\n   0\n");
            assert_ne!(changed, config);
            changed
        };
        assert_ne!(plain, with(&other), "other layers are read");
        let eagle = welte_goldens::Golden::new("drafts/eagle3/hf");
        let eagle = open(eagle.path().to_str().unwrap()).unwrap();
        assert_ne!(plain, with_head(demo, &*eagle));
    }

    #[test]
    fn models_differ() {
        let tiny = of("synthetic:tiny:q8_0");
        assert_eq!(tiny, of("synthetic:tiny:q8_0"));
        assert_ne!(tiny, of("synthetic:tiny:q4_0"));
        assert_ne!(
            tiny,
            of(
                "synthetic:custom,arch=llama,layers=2,dim=64,heads=2,kv_heads=1,head_dim=32,ffn=128,vocab=300:q8_0"
            )
        );
    }

    /// A tensor that notes which of its rows are read.
    struct Noting([TensorInfo; 1], std::sync::Mutex<Vec<(usize, usize)>>);

    impl Checkpoint for Noting {
        fn origin(&self) -> &str {
            "noting"
        }
        fn dialect(&self) -> welte_formats::Dialect {
            welte_formats::Dialect::Gguf
        }
        fn metadata(&self) -> &welte_formats::Metadata {
            panic!("it is not asked for")
        }
        fn tensors(&self) -> &[TensorInfo] {
            &self.0
        }
        fn tensor(&self, _: &str) -> Option<&TensorInfo> {
            self.0.first()
        }
        fn rows(
            &self,
            _: &TensorInfo,
            first: usize,
            count: usize,
        ) -> Result<Cow<'_, [u8]>, welte_formats::Error> {
            self.1.lock().unwrap().push((first, count));
            Ok(Cow::Borrowed(&[]))
        }
    }

    #[test]
    fn both_ends_and_the_middle_of_a_tensor_are_read() {
        let spec = welte_models::spec(open("synthetic:tiny:q8_0").unwrap().as_ref()).unwrap();
        let read = |n: usize, k: usize| {
            let tensor = TensorInfo {
                name: "t".to_owned(),
                format: Format::F32,
                n,
                k,
                stack: 1,
            };
            let noting = Noting([tensor], Default::default());
            fingerprint(&noting, &spec);
            noting.1.into_inner().unwrap()
        };
        // Four rows of 1024 bytes are a sample.
        assert_eq!(read(100, 256), [(0, 4), (48, 4), (96, 4)]);
        assert_eq!(read(3, 256), [(0, 3), (0, 3), (0, 3)]);
        // Of long rows one.
        assert_eq!(read(9, 5000), [(0, 1), (4, 1), (8, 1)]);
    }
}
