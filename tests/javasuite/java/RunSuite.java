import static java.lang.reflect.Modifier.isAbstract;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import org.junit.Test;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.RunWith;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;
import org.junit.runners.model.TestClass;

/**
 * Runs the test classes named as arguments, and prints one line for each test.
 *
 * Classes without tests of their own are left out: base classes, helpers, and lists of classes.
 *
 * The lines are "ok CLASS.METHOD", "skipped CLASS.METHOD" and "failed CLASS.METHOD REASON". The
 * exit code is 0 even if tests fail: the caller knows which ones may.
 */
public class RunSuite {
    private static final PrintStream RESULTS =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true);

    private static String name(Description test) {
        return test.getClassName() + "." + test.getMethodName();
    }

    private static class Printer extends RunListener {
        private String failure;

        @Override
        public void testStarted(Description test) {
            failure = null;
        }

        @Override
        public void testFailure(Failure event) {
            String text = event.getTrace().replaceAll("\\s+", " ");
            String reason = text.substring(0, Math.min(2000, text.length()));
            if (event.getDescription().getMethodName() == null) {
                RESULTS.println("failed " + name(event.getDescription()) + " " + reason);
            }
            failure = failure == null ? reason : failure;
        }

        @Override
        public void testAssumptionFailure(Failure event) {
            failure = "skipped";
        }

        @Override
        public void testFinished(Description test) {
            if (failure == null) {
                RESULTS.println("ok " + name(test));
            } else if (failure.equals("skipped")) {
                RESULTS.println("skipped " + name(test));
            } else {
                RESULTS.println("failed " + name(test) + " " + failure);
            }
        }
    }

    public static void main(String[] classes) throws ClassNotFoundException {
        JUnitCore core = new JUnitCore();
        core.addListener(new Printer());
        for (String name : classes) {
            Class<?> candidate = Class.forName(name);
            if (!isAbstract(candidate.getModifiers()) && !candidate.isAnnotationPresent(RunWith.class)
                    && !new TestClass(candidate).getAnnotatedMethods(Test.class).isEmpty()) {
                core.run(Request.aClass(candidate));
            }
        }
        System.exit(0);
    }
}
