//! Loads modules, each once.

use super::{devices::modaliases, index::ModuleIndex};
use flate2::read::MultiGzDecoder;
use rustix::{
    io::Errno,
    system::{finit_module, init_module},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::CStr,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// Flag of finit_module(2): the kernel decompresses the file. It must be built with
/// `CONFIG_MODULE_DECOMPRESS`.
const COMPRESSED_FILE: i32 = 4;
/// Suffix of modules that are decompressed here, as Alpine's are: not every kernel can.
const GZIP: &str = "gz";
/// Maximum size of a decompressed module in bytes.
const MAX_MODULE: u64 = 256 << 20;

/// The modules of the initramfs, and what became of them.
pub struct ModuleLoader {
    folder: PathBuf,
    index: ModuleIndex,
    /// Modules that were tried, with the error of those that failed.
    tried: BTreeMap<String, Option<io::Error>>,
    aliases: BTreeSet<String>,
}

impl ModuleLoader {
    /// Reads the index of a folder `/lib/modules/RELEASE`.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        let text = |file: &str| fs::read_to_string(folder.join(file));
        let index = ModuleIndex::parse(&text("modules.dep")?, &text("modules.alias")?);
        Ok(ModuleLoader { folder, index, tried: BTreeMap::new(), aliases: BTreeSet::new() })
    }

    pub fn index(&self) -> &ModuleIndex {
        &self.index
    }

    /// Loads a module by name or alias with all that it needs. A name that the initramfs does not
    /// have is built into the kernel, or its user reports that it is missing.
    pub fn load(&mut self, name: &str) {
        if self.index.contains(name) {
            self.load_module(name, c"");
            return;
        }
        let modules = self.index.with_alias(name);
        let modules: Vec<String> = modules.into_iter().map(str::to_owned).collect();
        modules.iter().for_each(|module| self.load_module(module, c""));
    }

    /// Loads a module with parameters, and all that it needs.
    pub fn load_with(&mut self, name: &str, parameters: &CStr) -> io::Result<()> {
        if !self.index.contains(name) {
            return Err(io::Error::other(format!("the image has no module {name}")));
        }
        self.load_module(name, parameters);
        match self.error(name) {
            Some(error) => Err(io::Error::other(error.to_string())),
            None => Ok(()),
        }
    }

    /// Loads the modules of devices that were not seen before. Returns true if there was one: its
    /// driver may make further devices.
    pub fn load_for_devices(&mut self, sysfs: &Path) -> bool {
        let before = self.tried.len();
        for alias in modaliases(sysfs) {
            if self.aliases.insert(alias.clone()) {
                self.load(&alias);
            }
        }
        self.tried.len() > before
    }

    /// Returns the error of a module.
    pub fn error(&self, module: &str) -> Option<&io::Error> {
        self.tried.get(module)?.as_ref()
    }

    /// Returns the modules that could not be loaded, with their errors.
    pub fn errors(&self) -> impl Iterator<Item = (&str, &io::Error)> {
        self.tried.iter().filter_map(|(name, error)| Some((name.as_str(), error.as_ref()?)))
    }

    fn load_module(&mut self, target: &str, parameters: &CStr) {
        for (name, module) in self.index.load_order(target) {
            if self.tried.contains_key(name) {
                continue;
            }
            let path = self.folder.join(module.path.relative());
            let parameters = if name == target { parameters } else { c"" };
            let outcome = insert(&path, module.is_compressed(), parameters).err();
            self.tried.insert(name.to_owned(), outcome);
        }
    }
}

fn insert(path: &Path, is_compressed: bool, parameters: &CStr) -> io::Result<()> {
    let file = File::open(path)?;
    let flags = if is_compressed { COMPRESSED_FILE } else { 0 };
    let inserted = if path.extension().is_some_and(|suffix| suffix == GZIP) {
        let mut module = Vec::new();
        MultiGzDecoder::new(file).take(MAX_MODULE).read_to_end(&mut module)?;
        init_module(&module, parameters)
    } else {
        finit_module(&file, parameters, flags)
    };
    match inserted {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
