//! What does a phase see of those before it?
//!
//! Their outputs, as a tuple in their order: nothing for the first phase, `(A,)` for the second, `(A, B)` for
//! the third. Each phase reads them anew from what is durable, so a flow that goes on in another process
//! sees what it would have seen in the first one.

use bytes::Bytes;
use serde::de::DeserializeOwned;

/// The outputs of the phases before one: a tuple of at most twelve. Nobody else implements this.
pub trait PastOutputs: sealed::ReadOutputs {}

/// Outputs to which one more can be added. Nobody else implements this.
pub trait AddOutput<T>: PastOutputs {
    /// The outputs with this one at their end.
    type Added: PastOutputs;
}

pub(super) mod sealed {
    use bytes::Bytes;

    /// Reads outputs from what a record keeps of them.
    pub trait ReadOutputs: Sized + Send + 'static {
        fn read_outputs(kept: &[Bytes]) -> serde_json::Result<Self>;
    }
}

/// One output by its place. One that is missing is an error of its own kind: its text ends too early.
fn output_at<T: DeserializeOwned>(kept: &[Bytes], place: usize) -> serde_json::Result<T> {
    serde_json::from_slice(kept.get(place).map(|output| &**output).unwrap_or_default())
}

macro_rules! tuple_of_outputs {
    ($($output:ident at $place:literal),*) => {
        impl<$($output),*> PastOutputs for ($($output,)*)
        where
            $($output: DeserializeOwned + Send + 'static),*
        {
        }

        impl<$($output),*> sealed::ReadOutputs for ($($output,)*)
        where
            $($output: DeserializeOwned + Send + 'static),*
        {
            #[allow(unused_variables, reason = "the first phase has none to read")]
            fn read_outputs(kept: &[Bytes]) -> serde_json::Result<Self> {
                Ok(($(output_at::<$output>(kept, $place)?,)*))
            }
        }
    };
}

macro_rules! tuple_that_grows {
    ($($output:ident),*) => {
        impl<$($output,)* Added> AddOutput<Added> for ($($output,)*)
        where
            $($output: DeserializeOwned + Send + 'static,)*
            Added: DeserializeOwned + Send + 'static,
        {
            type Added = ($($output,)* Added,);
        }
    };
}

tuple_of_outputs!();
tuple_of_outputs!(A at 0);
tuple_of_outputs!(A at 0, B at 1);
tuple_of_outputs!(A at 0, B at 1, C at 2);
tuple_of_outputs!(A at 0, B at 1, C at 2, D at 3);
tuple_of_outputs!(A at 0, B at 1, C at 2, D at 3, E at 4);
tuple_of_outputs!(A at 0, B at 1, C at 2, D at 3, E at 4, F at 5);
tuple_of_outputs!(A at 0, B at 1, C at 2, D at 3, E at 4, F at 5, G at 6);
tuple_of_outputs!(A at 0, B at 1, C at 2, D at 3, E at 4, F at 5, G at 6, H at 7);
tuple_of_outputs!(A at 0, B at 1, C at 2, D at 3, E at 4, F at 5, G at 6, H at 7, I at 8);
tuple_of_outputs!(A at 0, B at 1, C at 2, D at 3, E at 4, F at 5, G at 6, H at 7, I at 8, J at 9);
tuple_of_outputs!(A at 0, B at 1, C at 2, D at 3, E at 4, F at 5, G at 6, H at 7, I at 8, J at 9, K at 10);
tuple_of_outputs!(A at 0, B at 1, C at 2, D at 3, E at 4, F at 5, G at 6, H at 7, I at 8, J at 9, K at 10, L at 11);

tuple_that_grows!();
tuple_that_grows!(A);
tuple_that_grows!(A, B);
tuple_that_grows!(A, B, C);
tuple_that_grows!(A, B, C, D);
tuple_that_grows!(A, B, C, D, E);
tuple_that_grows!(A, B, C, D, E, F);
tuple_that_grows!(A, B, C, D, E, F, G);
tuple_that_grows!(A, B, C, D, E, F, G, H);
tuple_that_grows!(A, B, C, D, E, F, G, H, I);
tuple_that_grows!(A, B, C, D, E, F, G, H, I, J);
tuple_that_grows!(A, B, C, D, E, F, G, H, I, J, K);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_read_by_their_place_and_none_is_made_up() {
        let kept = [Bytes::from_static(b"7"), Bytes::from_static(b"\"ch_1\"")];
        read::<()>(&kept[..0]).unwrap();
        let both: (i64, String) = read(&kept).unwrap();
        assert_eq!(both, (7, "ch_1".to_owned()));
        assert!(read::<(i64, String)>(&kept[..1]).is_err(), "one is missing");
        assert!(read::<(i64, i64)>(&kept).is_err(), "one is of another type");
    }

    fn read<O: PastOutputs>(kept: &[Bytes]) -> serde_json::Result<O> {
        O::read_outputs(kept)
    }
}
