//! Where does a record lie, so that nobody has to look for it?
//!
//! A settle follows its begin within moments. The begin says at which place of the table it was written, and the settle looks there first:
//! to find a record in the index costs a sixth of what the server does for both. A place is a hint and never the truth: the settle
//! compares name and version with what lies there. A record that was moved meanwhile is not found, and is looked for by its name.

use std::error::Error;

use retrysafe_core::scope::Id;
use tokio_postgres::types::{FromSql, Type, accepts};

use crate::id_map::IdMap;

/// How many places a lane remembers: more than it has under way. A record that is never settled leaves one behind.
const PLACES_MAX: usize = 16_384;

/// A row's place in its table: the number of a page, and a number in the page. As the server sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place([u8; 6]);

impl<'a> FromSql<'a> for Place {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    accepts!(TID);
}

impl Place {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Where records lie that were begun lately.
#[derive(Debug, Default)]
pub(super) struct Places(IdMap<(u64, Place)>);

impl Places {
    /// The record of this version was written there.
    pub(super) fn note(&mut self, id: Id, version: u64, place: Place) {
        if self.0.len() >= PLACES_MAX {
            self.0.clear();
        }
        self.0.insert(id, (version, place));
    }

    /// Where the record of this version was written, if that is known. It is asked once: whoever finds nothing there asks for the record by
    /// its name.
    pub(super) fn take(&mut self, id: &Id, version: u64) -> Option<Place> {
        let (written, place) = self.0.remove(id)?;
        (written == version).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> Id {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        Id::from_bytes(bytes)
    }

    #[test]
    fn a_place_is_told_once_and_for_its_version_only() {
        let (mut places, place) = (Places::default(), Place([0, 0, 0, 7, 0, 1]));
        places.note(id(1), 10, place);
        places.note(id(2), 20, place);
        assert_eq!(places.take(&id(1), 10), Some(place));
        assert_eq!(places.take(&id(1), 10), None, "it may not lie there any more");
        assert_eq!(places.take(&id(2), 21), None, "somebody has written it since");
    }

    #[test]
    fn records_that_are_never_settled_do_not_fill_the_memory() {
        let mut places = Places::default();
        for number in 0..3 * PLACES_MAX as u64 {
            places.note(id(number), 1, Place([0; 6]));
        }
        assert!(places.0.len() <= PLACES_MAX);
    }
}
