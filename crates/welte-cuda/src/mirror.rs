//! Structs that Rust passes to CUDA C++. Each is declared once here in Rust; both compilers check its layout.

/// The layout of a mirrored struct, as Rust has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The name of the C++ struct.
    pub(crate) name: &'static str,
    /// What the preprocessor must find true where the C++ struct has this layout; empty: it always has.
    pub(crate) condition: &'static str,
    pub(crate) bytes: usize,
    /// Name and offset of each field.
    pub(crate) fields: &'static [(&'static str, usize)],
}

impl Layout {
    /// A C++ `static_assert` that fails where the C++ struct has another size or other offsets.
    pub(crate) fn static_assert(&self) -> String {
        let Layout {
            name,
            condition,
            bytes,
            ..
        } = self;
        let offsets = self.fields.iter().map(|(field, offset)| {
            format!(" &&\n              OFFSET_OF({name}, {field}) == {offset}")
        });
        let offsets: String = offsets.collect();
        let check = format!(
            "static_assert(sizeof({name}) == {bytes}{offsets}, \"{name} differs from its Rust mirror\");\n"
        );
        if condition.is_empty() {
            check
        } else {
            format!("#if {condition}\n{check}#endif\n")
        }
    }
}

/// Declares a `repr(C)` struct that mirrors the C++ struct named after `=`, with the same field names. The struct must have
/// no padding: its bytes are copied to the GPU, so each of them must be initialised.
///
/// Where the C++ struct has other fields by a macro, each of its layouts is a struct here, and `if` says when it has this one. After
/// `extends` comes a struct whose fields are the first ones.
macro_rules! mirrored {
    ($(#[$meta:meta])* $vis:vis struct $name:ident = $cpp:literal $(if $condition:literal)? $(extends $base:ident)? {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty),* $(,)?
    }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        $vis struct $name {
            $(plain: $base,)?
            $($(#[$field_meta])* $field_vis $field: $type),*
        }

        const _: () = {
            let mut end = 0 $(+ size_of::<$base>())?;
            $(
                assert!(std::mem::offset_of!($name, $field) == end, "padding before a field");
                end += size_of::<$type>();
            )*
            assert!(size_of::<$name>() == end, "padding at the end");
        };

        impl $name {
            /// For the C++ compiler to check.
            pub(crate) const LAYOUT: $crate::mirror::Layout = $crate::mirror::Layout {
                name: $cpp,
                condition: concat!($($condition)?),
                bytes: size_of::<$name>(),
                fields: &[$((stringify!($field), std::mem::offset_of!($name, $field))),*],
            };
        }
    };
}

pub(crate) use mirrored;

#[cfg(test)]
mod tests {
    mirrored! {
        struct Example = "CppExample" {
            address: u64,
            counts: [u8; 4],
            scale: f32,
        }
    }

    mirrored! {
        struct Longer = "CppExample" if "LONG" extends Example {
            more: u64,
        }
    }

    #[test]
    fn a_layout_may_depend_on_a_macro() {
        let text = Longer::LAYOUT.static_assert();
        let begins = "#if LONG\nstatic_assert(sizeof(CppExample) == 24 ";
        assert!(
            text.starts_with(begins) && text.ends_with("\n#endif\n"),
            "{text}"
        );
        assert!(
            text.contains("(CppExample, more) == 16,") && !text.contains("address"),
            "{text}"
        );
    }

    #[test]
    fn an_assertion_names_the_size_and_every_offset() {
        let text = Example::LAYOUT.static_assert();
        for part in [
            "sizeof(CppExample) == 16 ",
            "(CppExample, address) == 0 ",
            "(CppExample, counts) == 8 ",
            "(CppExample, scale) == 12,",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
