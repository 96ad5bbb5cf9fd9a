package tardismachine.lake;

import io.delta.storage.HDFSLogStore;
import java.io.BufferedOutputStream;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log in a folder of this machine.
 *
 * <p>Delta's own store asks, several times a commit, for size and time of all files that the log
 * has, although it wants those since the last checkpoint: the longer a stream runs, the longer each
 * batch takes. It also starts processes to write a commit, and gives it its name in two steps, so
 * that of two processes both may believe it theirs.
 */
public class LocalLogStore extends HDFSLogStore {
  public LocalLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration configuration) throws IOException {
    FileSystem files = path.getFileSystem(configuration);
    if (!(files instanceof LocalFileSystem)) {
      return super.listFrom(path, configuration);
    }
    Path folder = files.makeQualified(path).getParent();
    String from = path.getName();
    String[] names = file(folder).list((in, name) -> name.compareTo(from) >= 0);
    if (names == null) {
      throw new FileNotFoundException("No such file or directory: " + folder);
    }
    Arrays.sort(names);
    List<FileStatus> found = new ArrayList<>(names.length);
    for (String name : names) {
      Path each = new Path(folder, new Path(null, null, name));
      if (!ChecksumFileSystem.isChecksumFile(each)) {
        try {
          found.add(files.getFileStatus(each));
        } catch (FileNotFoundException gone) {
          // Since its name was read.
        }
      }
    }
    return found.iterator();
  }

  @Override
  public void write(
      Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    FileSystem files = path.getFileSystem(configuration);
    // What is there may have a checksum beside it, which has to be written with it.
    if (overwrite || !(files instanceof LocalFileSystem)) {
      super.write(path, actions, overwrite, configuration);
      return;
    }
    List<String> lines = new ArrayList<>();
    actions.forEachRemaining(lines::add);
    Path whole = files.makeQualified(path);
    java.nio.file.Path target = file(whole).toPath();
    java.nio.file.Path written =
        target.resolveSibling("." + path.getName() + "." + UUID.randomUUID() + ".tmp");
    try {
      try (OutputStream out =
          new BufferedOutputStream(Files.newOutputStream(written, StandardOpenOption.CREATE_NEW))) {
        for (String line : lines) {
          out.write(line.getBytes(StandardCharsets.UTF_8));
          out.write('\n');
        }
      }
      // A second name is given at once or, where there is a file of that name, not at all.
      Files.createLink(target, written);
    } catch (FileAlreadyExistsException found) {
      throw new FileAlreadyExistsException(path.toString());
    } catch (UnsupportedOperationException | FileSystemException refused) {
      // Not every file system knows second names.
      super.write(path, lines.iterator(), overwrite, configuration);
    } finally {
      Files.deleteIfExists(written);
    }
  }

  private static File file(Path path) {
    return new File(path.toUri().getPath());
  }
}
