package tardismachine.lake;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on S3, for several writers at once: a commit is put with If-None-Match, so that S3
 * itself takes only the first of two of the same number. Delta's own store knows only the writers
 * of its own driver.
 */
public class ConditionalS3LogStore extends S3SingleDriverLogStore {
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";

  public ConditionalS3LogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(
      Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    if (overwrite) {
      super.write(path, actions, overwrite, configuration);
      return;
    }
    // Whole before it is begun: closing a stream is what makes a file of it.
    ByteArrayOutputStream content = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      content.write(actions.next().getBytes(StandardCharsets.UTF_8));
      content.write('\n');
    }
    FileSystem files = path.getFileSystem(configuration);
    FSDataOutputStreamBuilder<?, ?> creating = files.createFile(path).overwrite(true);
    creating.must(CONDITIONAL, true);
    try (FSDataOutputStream out = creating.build()) {
      content.writeTo(out);
    } catch (IOException refused) {
      byte[] held = content(files, path);
      if (held == null) {
        throw refused;
      }
      // An answer that was lost on its way makes the client ask again: then it is our own.
      if (!Arrays.equals(held, content.toByteArray())) {
        FileAlreadyExistsException found = new FileAlreadyExistsException(path.toString());
        found.initCause(refused);
        throw found;
      }
    }
  }

  private static byte[] content(FileSystem files, Path path) throws IOException {
    try (FSDataInputStream in = files.open(path)) {
      return in.readAllBytes();
    } catch (FileNotFoundException none) {
      return null;
    }
  }
}
