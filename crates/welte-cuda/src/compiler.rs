//! The run-time compiler, NVRTC, and what is remembered of it so that a start need not open it.
#![allow(unsafe_code)]

use crate::disk::{cache_folder, hashed, read_cached, write_cached};
use crate::launch::Unit;
use crate::sources::{DECODE_UNITS, SOURCES, source, title};
use crate::{Error, libraries};
use cudarc::nvrtc::sys as nvrtc;
use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

/// Major and minor.
pub(crate) type Version = (i32, i32);

/// The run-time compiler's version, if it can be used. The error names what is missing. Opening the compiler takes a tenth of a
/// second, so its version is noted beside the kernel cache and believed as long as the library's file is the same.
pub(crate) fn version() -> Result<Version, Error> {
    static KNOWN: OnceLock<Version> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let noted = Note::read().filter(|note| note.is_current() && include_folder().is_some());
    let version = match noted {
        Some(note) => note.version,
        None => {
            let version = Compiler::find().map_err(Error::NoCompiler)?.version;
            if let Some(note) = Note::of_open(version) {
                note.write();
            }
            version
        }
    };
    Ok(*KNOWN.get_or_init(|| version))
}

/// The version of the compiler that compiled what is in the kernel cache: it may be gone.
pub(crate) fn version_of_cache() -> Version {
    let noted = || Note::read().map(|note| note.version);
    version().ok().or_else(noted).unwrap_or_default()
}

/// Which file the compiler was opened from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Note {
    version: Version,
    file: PathBuf,
    /// Size and time of change of the file.
    stamp: (u64, u128),
    /// The environment that decides which file is opened.
    searched: Vec<PathBuf>,
}

impl Note {
    /// For the compiler that is open now.
    fn of_open(version: Version) -> Option<Note> {
        let file = libraries::nvrtc_file()?;
        Some(Note {
            version,
            stamp: stamp(&file)?,
            file,
            searched: libraries::homes(),
        })
    }

    /// Whether a search would find the same file, unchanged.
    fn is_current(&self) -> bool {
        stamp(&self.file) == Some(self.stamp) && self.searched == libraries::homes()
    }

    fn path() -> Option<PathBuf> {
        Some(cache_folder()?.join("compiler"))
    }

    fn read() -> Option<Note> {
        Note::of_text(&String::from_utf8(read_cached(&Note::path()?)?).ok()?)
    }

    /// Without a writable cache the next start opens the compiler again.
    fn write(&self) {
        if let (Some(path), Some(text)) = (Note::path(), self.to_text()) {
            let _ = write_cached(&path, text.as_bytes());
        }
    }

    /// A line for each field, then one for each folder. `None` if a path is not one line of text.
    fn to_text(&self) -> Option<String> {
        let ((major, minor), (size, changed)) = (self.version, self.stamp);
        let mut text = format!("{major}\n{minor}\n{size}\n{changed}");
        for path in std::iter::once(&self.file).chain(&self.searched) {
            let path = path.to_str().filter(|path| !path.contains('\n'))?;
            text += &format!("\n{path}");
        }
        Some(text)
    }

    fn of_text(text: &str) -> Option<Note> {
        let mut lines = text.split('\n');
        let mut line = || lines.next();
        let version = (line()?.parse().ok()?, line()?.parse().ok()?);
        let stamp = (line()?.parse().ok()?, line()?.parse().ok()?);
        let file = PathBuf::from(line()?);
        let searched = lines.map(PathBuf::from).collect();
        Some(Note {
            version,
            file,
            stamp,
            searched,
        })
    }
}

fn stamp(file: &Path) -> Option<(u64, u128)> {
    let known = file.metadata().ok()?;
    let changed = known.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some((known.len(), changed.as_nanos()))
}

/// The run-time compiler and CUDA's headers.
pub(crate) struct Compiler {
    version: Version,
    include: PathBuf,
}

impl Compiler {
    pub(crate) fn find() -> Result<Compiler, String> {
        if !libraries::has_nvrtc() {
            return Err(
                "libnvrtc is missing: install the CUDA toolkit (or its nvrtc package) and set CUDA_HOME to its folder, or put its lib folder on the library path"
                    .to_string(),
            );
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the compiler writes two numbers.
        unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) };
        let include = include_folder().ok_or(
            "cuda_fp16.h was not found: set CUDA_HOME to the folder of the CUDA toolkit that has include/cuda_fp16.h",
        )?;
        Ok(Compiler {
            version: (major, minor),
            include,
        })
    }

    /// Compiles a unit. Returns the cubin and the assembler's output.
    pub(crate) fn compile(
        &self,
        unit: &Unit,
        arch: &str,
        verbose: bool,
    ) -> Result<(Vec<u8>, String), Error> {
        let missing = || Error::Compile {
            unit: title(unit),
            arch: arch.to_string(),
            log: "no such file".to_string(),
        };
        let source = source(unit.file).ok_or_else(missing)?;
        self.compile_text(source, unit, arch, verbose)
    }

    /// A name for all that decides what [`Compiler::compile_text`] returns, or with `syntax` [`Compiler::check_text`]: sources,
    /// options, and the compiler's file.
    pub(crate) fn name_of_result(
        &self,
        source: &str,
        unit: &Unit,
        arch: &str,
        syntax: bool,
    ) -> String {
        let file = libraries::nvrtc_file().map(|file| (stamp(&file), file));
        let options = if syntax {
            syntax_options(unit, arch)
        } else {
            options(unit, arch, true)
        };
        hashed(&(source, unit, options, self.version, file, SOURCES))
    }

    /// Compiles `source` in place of the unit's file.
    pub(crate) fn compile_text(
        &self,
        source: &str,
        unit: &Unit,
        arch: &str,
        verbose: bool,
    ) -> Result<(Vec<u8>, String), Error> {
        let program = self.run(source, unit, arch, options(unit, arch, verbose))?;
        let image = program.image();
        let image = image.ok_or_else(|| refused(unit, arch, "no code".to_string()))?;
        Ok((image, program.log()))
    }

    /// Reads `source` in place of the unit's file and makes no code of it, which takes a fifth of the time.
    pub(crate) fn check_text(&self, source: &str, unit: &Unit, arch: &str) -> Result<(), Error> {
        self.run(source, unit, arch, syntax_options(unit, arch))?;
        Ok(())
    }

    fn run(
        &self,
        source: &str,
        unit: &Unit,
        arch: &str,
        mut options: Vec<String>,
    ) -> Result<Program, Error> {
        let refused = |log: String| refused(unit, arch, log);
        let text = |text: &str| CString::new(text).map_err(|e| refused(e.to_string()));
        options.push(format!("--include-path={}", self.include.display()));
        let options = options.iter().map(|option| text(option));
        let options: Vec<CString> = options.collect::<Result<_, Error>>()?;
        let headers: Vec<(CString, CString)> = SOURCES
            .iter()
            .map(|(name, source)| Ok((text(name)?, text(source)?)))
            .chain([Ok((text("generated.cuh")?, text(&unit.generated)?))])
            .collect::<Result<_, Error>>()?;
        let names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let bodies: Vec<*const c_char> = headers.iter().map(|(_, body)| body.as_ptr()).collect();
        let option_texts: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let (source, name) = (text(source)?, text(unit.file)?);
        let mut program = Program(std::ptr::null_mut());
        // SAFETY: every string ends in a zero and outlives the calls; the counts match the lists.
        unsafe {
            let made = nvrtc::nvrtcCreateProgram(
                &mut program.0,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as i32,
                bodies.as_ptr(),
                names.as_ptr(),
            );
            if made != nvrtc::nvrtcResult::NVRTC_SUCCESS {
                return Err(refused(format!("{made:?}")));
            }
            let compiled = nvrtc::nvrtcCompileProgram(
                program.0,
                option_texts.len() as i32,
                option_texts.as_ptr(),
            );
            if compiled != nvrtc::nvrtcResult::NVRTC_SUCCESS {
                return Err(refused(program.log()));
            }
        }
        Ok(program)
    }
}

fn refused(unit: &Unit, arch: &str, log: String) -> Error {
    Error::Compile {
        unit: title(unit),
        arch: arch.to_string(),
        log,
    }
}

/// What the compiler is told, apart from where CUDA's headers are.
pub(crate) fn options(unit: &Unit, arch: &str, verbose: bool) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_string(),
    ];
    if DECODE_UNITS.contains(&unit.file) {
        options.push("--fmad=false".to_string());
    }
    if verbose {
        options.push("--ptxas-options=-v".to_string());
    }
    let defines = unit.defines.iter();
    options.extend(defines.map(|(key, value)| format!("--define-macro={key}={value}")));
    options
}

fn syntax_options(unit: &Unit, arch: &str) -> Vec<String> {
    let mut options = options(unit, arch, false);
    options.push("--fdevice-syntax-only".to_string());
    options
}

/// The run-time compiler's handle for one compilation.
struct Program(nvrtc::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program exists. The compiler writes as many bytes as it asked for.
        let bytes = unsafe {
            nvrtc::nvrtcGetProgramLogSize(self.0, &mut size);
            let mut bytes = vec![0u8; size.max(1)];
            nvrtc::nvrtcGetProgramLog(self.0, bytes.as_mut_ptr().cast());
            bytes
        };
        String::from_utf8_lossy(&bytes)
            .trim_end_matches('\0')
            .trim()
            .to_string()
    }

    fn image(&self) -> Option<Vec<u8>> {
        let mut size = 0;
        // SAFETY: as in `log`.
        unsafe {
            nvrtc::nvrtcGetCUBINSize(self.0, &mut size);
            let mut image = vec![0u8; size];
            let got = nvrtc::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast());
            (size > 0 && got == nvrtc::nvrtcResult::NVRTC_SUCCESS).then_some(image)
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: `nvrtcCreateProgram` created it, or it is null.
        unsafe {
            if !self.0.is_null() {
                nvrtc::nvrtcDestroyProgram(&mut self.0);
            }
        }
    }
}

/// The folder with CUDA's headers.
fn include_folder() -> Option<PathBuf> {
    let folders = libraries::homes().into_iter();
    folders
        .map(|home| home.join("include"))
        .find(|folder| folder.join("cuda_fp16.h").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note() -> Note {
        // Any file that is there.
        let file = std::env::current_exe().unwrap();
        Note {
            version: (13, 1),
            stamp: stamp(&file).unwrap(),
            file,
            searched: libraries::homes(),
        }
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let note = note();
        let text = note.to_text().unwrap();
        assert_eq!(Note::of_text(&text), Some(note.clone()));
        assert_eq!(Note::of_text(&text[..4]), None);
        assert_eq!(Note::of_text(&text.replace("13\n", "x\n")), None);
        let strange = Note {
            file: PathBuf::from("a\nb"),
            ..note
        };
        assert_eq!(strange.to_text(), None);
    }

    #[test]
    fn a_note_holds_for_the_same_file_and_search_only() {
        let note = note();
        assert!(note.is_current());
        let (size, changed) = note.stamp;
        for stamp in [(size + 1, changed), (size, changed - 1)] {
            assert!(
                !Note {
                    stamp,
                    ..note.clone()
                }
                .is_current()
            );
        }
        let mut searched = note.searched.clone();
        searched.push(PathBuf::from("/elsewhere"));
        assert!(
            !Note {
                searched,
                ..note.clone()
            }
            .is_current()
        );
        let file = note.file.with_extension("gone");
        assert!(!Note { file, ..note }.is_current());
    }
}
